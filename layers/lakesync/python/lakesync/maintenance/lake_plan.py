"""Decides which maintenance of a lake table pays, by counts of files and snapshots. Pure.

A reader opens every data file, every delete file and every manifest, and whoever keeps a table pays
for what only old snapshots name. Whatever is below its threshold here costs less than the work.
Law L17: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

TARGET_FILE_BYTES: Final = 128 << 20
"""What small files are joined to: one row group, which one task reads."""
SMALL_FILE_BYTES_MAX: Final = 32 << 20
"""A data file of at most so many bytes is small: opening it takes as long as reading it."""
SMALL_FILES_MAX: Final = 4
"""Small files that may stay in one partition; beyond, they are joined."""
DEAD_ROWS_PER_ROW_MAX: Final = 0.2
"""Dead rows for each live one that may stay; beyond, the files that hold most are written anew."""
DELETE_FILES_PER_FILE_MAX: Final = 1.0
"""Delete files for each data file that may stay; beyond, they are joined."""
MANIFESTS_MAX: Final = 20
"""Manifests that may stay: a reader fetches them all before it reads any row."""
ORPHAN_AGE_MS_MIN: Final = 3 * 86_400_000
"""How old a file must be that nothing names: a run that is still writing names its files at its
end, which comes after two hours at the latest."""
ORPHANS_EVERY_DAYS: Final = 7
"""How often files that nothing names are looked for: all of a table's files must be listed."""
_DAY_MS: Final = 86_400_000


class Step(StrEnum):
    """One thing that is done to a table."""

    FILES = "rewrite files"
    DELETES = "rewrite delete files"
    MANIFESTS = "rewrite manifests"
    SNAPSHOTS = "expire snapshots"
    ORPHANS = "remove orphans"


UNDER_LEASE: Final = frozenset({Step.FILES, Step.DELETES, Step.MANIFESTS})
"""What makes another snapshot the current one: a merge that began before would have to repeat."""


class TableFigures(NamedTuple):
    """What a table consists of."""

    files: int = 0
    """Data files."""
    delete_files: int = 0
    rows: int = 0
    """Live rows, tombstones too."""
    dead_rows: int = 0
    """Rows that delete files take away."""
    bytes: int = 0
    """Of all files that the current snapshot names."""
    snapshots: int = 0
    old_snapshots: int = 0
    """Those that are older than they are kept, and that no branch or tag names."""
    manifests: int = 0
    small_files: int = 0
    """Small data files of the partition that has most of them."""


def steps_for(figures: TableFigures, table: str, now_ms: int) -> tuple[Step, ...]:
    """Give what pays, in the order in which it is done.

    Args:
        figures: what the table consists of.
        table: its name, which decides on which day its orphans are looked for.
        now_ms: the time.
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
    """Tell whether a table's orphans are looked for today: tables take turns, without a record."""
    return (now_ms // _DAY_MS + crc32(table.encode())) % ORPHANS_EVERY_DAYS == 0
