"""Maintenance that shortens the log: flush, trim, checkpoints, tombstones; and restore."""
