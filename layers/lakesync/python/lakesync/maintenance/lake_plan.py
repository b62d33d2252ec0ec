"""Decides which maintenance of a lake table pays, from counts of files and snapshots. Pure.

A reader opens every data file, every delete file and every manifest, and files that only old
snapshots name cost storage. Below its threshold here, each of these costs less than the work to
remove it.
Law L17: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

TARGET_FILE_BYTES: Final = 128 << 20
"""The size to which small files are joined: one row group, which one task reads."""
SMALL_FILE_BYTES_MAX: Final = 32 << 20
"""A data file of at most this size is small: opening it takes as long as reading it."""
SMALL_FILES_MAX: Final = 4
"""Small files that may remain in one partition; beyond this, they are joined."""
DEAD_ROWS_PER_ROW_MAX: Final = 0.2
"""Dead rows that may remain for each live one; beyond this, the files with most are rewritten."""
DELETE_FILES_PER_FILE_MAX: Final = 1.0
"""Delete files that may remain for each data file; beyond this, they are joined."""
MANIFESTS_MAX: Final = 20
"""Manifests that may remain: a reader fetches all of them before it reads any row."""
ORPHAN_AGE_MS_MIN: Final = 3 * 86_400_000
"""The least age of a file that nothing names. A run names its files only at its end, which comes
after two hours at the latest."""
ORPHANS_EVERY_DAYS: Final = 7
"""How often files that nothing names are searched for: all of a table's files must be listed."""
_DAY_MS: Final = 86_400_000


class Step(StrEnum):
    FILES = "rewrite files"
    DELETES = "rewrite delete files"
    MANIFESTS = "rewrite manifests"
    SNAPSHOTS = "expire snapshots"
    ORPHANS = "remove orphans"


UNDER_LEASE: Final = frozenset({Step.FILES, Step.DELETES, Step.MANIFESTS})
"""Steps that replace the current snapshot: a merge that began before would have to repeat."""


class TableFigures(NamedTuple):
    files: int = 0
    """Data files."""
    delete_files: int = 0
    rows: int = 0
    """Live rows, tombstones too."""
    dead_rows: int = 0
    """Rows that delete files remove."""
    bytes: int = 0
    """Size of all files that the current snapshot names."""
    snapshots: int = 0
    old_snapshots: int = 0
    """Snapshots older than their retention, which no branch or tag names."""
    manifests: int = 0
    small_files: int = 0
    """Small data files of the partition with most of them."""


def steps_for(figures: TableFigures, table: str, now_ms: int) -> tuple[Step, ...]:
    """Return the steps that pay, in their order.

    Args:
        table: its name, which decides on which day its orphans are searched for.
    """
    wanted = {
        Step.FILES: figures.small_files > SMALL_FILES_MAX
        or figures.dead_rows > DEAD_ROWS_PER_ROW_MAX * figures.rows,
        Step.DELETES: figures.delete_files > DELETE_FILES_PER_FILE_MAX * figures.files,
        Step.MANIFESTS: figures.manifests > MANIFESTS_MAX,
        Step.SNAPSHOTS: figures.old_snapshots > 0,
        Step.ORPHANS: is_orphans_day(table, now_ms),
    }
    return tuple(step for step, is_wanted in wanted.items() if is_wanted)


def is_orphans_day(table: str, now_ms: int) -> bool:
    """Return whether a table's orphans are searched for today: tables take turns, statelessly."""
    return (now_ms // _DAY_MS + crc32(table.encode())) % ORPHANS_EVERY_DAYS == 0
