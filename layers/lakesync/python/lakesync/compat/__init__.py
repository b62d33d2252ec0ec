"""What only existing clients need: they keep no stamps, and receipts move their cursor."""
