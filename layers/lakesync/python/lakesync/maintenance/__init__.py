"""Maintenance that shortens the log: flush, trim, checkpoints, tombstones; and restore."""

from typing import Final

DOORS: Final = (
    "checkpoint_upkeep",
    "erasure",
    "flush",
    "horizons",
    "lake_plan",
)
"""What other folders may import."""
