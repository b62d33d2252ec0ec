"""What shortens the log: flush, trim, checkpoints, tombstones; and a restore from backup."""
