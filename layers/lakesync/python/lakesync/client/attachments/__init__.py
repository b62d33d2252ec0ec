"""The attachments of a client: added offline, uploaded and fetched when there is a network."""
