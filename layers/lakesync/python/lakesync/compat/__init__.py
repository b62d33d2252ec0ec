"""Code for existing clients only: they keep no stamps, and receipts move their cursor."""
