"""The lake's tables for notebooks; see ``docs/analysis.md``."""

from lakesync.analysis.opened import OpenedLake, open_lake, open_shared

__all__ = ["OpenedLake", "open_lake", "open_shared"]
