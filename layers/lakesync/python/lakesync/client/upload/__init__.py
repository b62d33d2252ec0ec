"""From the outbox to the gateway: batches of edits, and what their receipts do."""
