"""From the outbox to the gateway: batches of edits, and the effects of their receipts."""
