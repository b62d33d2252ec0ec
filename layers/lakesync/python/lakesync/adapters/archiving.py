"""Moves the old part of a database's history into an archive, in batches.

    1. put into the archive     one object for each batch, named by its content
    2. forget in the database   up to the archive's mark, and no further

If a process dies between the steps, the next run starts with step 2. No commit is missing from
both, and a reader of both as one (`lakesync.adapters.compositions.Lifecycle`) gets each once. Of a
batch that was read before an erasure ended, the erased part does not come into the archive.
Law P15: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.adapters.copying import Copied, is_forgotten, whole_commits
from lakesync.adapters.database import TableBatch
from lakesync.errors import LakeSyncError
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.adapters.objects.archive import HistoryArchive
    from lakesync.core.clock import Stamp
    from lakesync.result import Result

MOVED_MAX: Final = 200_000
"""Deltas of a table that are moved at a time; the next run continues."""


def archive_table(
    source: DatabaseAdapter,
    archive: HistoryArchive,
    table: str,
    *,
    until: Stamp,
    deltas_max: int = MOVED_MAX,
) -> Result[Copied, LakeSyncError]:
    """Move a table's history up to a commit. Safe to repeat, and to kill.

    If the source has forgotten the next commits, as after it was filled anew, the archive continues
    where the source's history begins, and readers across the gap get an error.

    Args:
        source: the database whose history is moved.
        archive: the archive that receives it.
        table: the table's name.
        until: commits above this one are not moved.
        deltas_max: about how many deltas to move; a batch is moved whole.

    Errors: those of either side; batches that were moved stay moved.
    """
    try:
        archive.sweep(table).unwrap()
        at = archive.mark(table).unwrap()
        last = min(source.mark(table).unwrap(), until)
        if at < last and is_forgotten(source, table, at):
            if is_forgotten(source, table, last):
                return Ok(Copied(table, 0, at))  # none of it is there any more
            at = _beginning(source, table, at, last)
            archive.begin_anew(table, at).unwrap()
        moved = 0
        for deltas, _ in whole_commits(source, table, at, last) if at < last else ():
            if not deltas:
                break
            upto = deltas[-1].position.commit
            moved += archive.insert_deltas(TableBatch(table, at, upto, deltas)).unwrap().deltas
            at = upto
            if moved >= deltas_max:
                break
        if old := min(at, last):
            source.forget_history(table, old).unwrap()
        return Ok(Copied(table, moved, at))
    except LakeSyncError as error:
        return Err(error)


def _beginning(source: DatabaseAdapter, table: str, low: Stamp, high: Stamp) -> Stamp:
    """Return where the source's history begins, between what it has forgotten and what it has."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_forgotten(source, table, middle):
            low = middle
        else:
            high = middle
    return high
