"""The lake's tables for notebooks; see ``docs/analysis.md``."""

from lakesync.analysis.opened import OpenedLake, open_lake

__all__ = ["OpenedLake", "open_lake"]
