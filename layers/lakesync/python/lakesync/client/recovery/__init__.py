"""When the client must read again: other rules, or a gateway restored from a backup."""
