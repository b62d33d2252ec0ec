"""Moves what is old of a database's history into an archive, some at a time.

    1. the archive has it       one object for each batch, under a name made of what is in it
    2. the database forgets it  up to where the archive is, and not beyond

Whoever dies between is followed by one who begins with 2: nothing is in neither, and who reads both
as one (`lakesync.adapters.compositions.Lifecycle`) is told of it once. If the archive was cleared
since the batch was read, as for an erasure, what was put is taken back: whoever clears it leaves
first where it begins, and looks then for what there is. Law P15: ``docs/spec/databases.md``.
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
"""Deltas that are moved of a table at a time; the next turn goes on."""


def archive_table(
    source: DatabaseAdapter,
    archive: HistoryArchive,
    table: str,
    *,
    until: Stamp,
    deltas_max: int = MOVED_MAX,
) -> Result[Copied, LakeSyncError]:
    """Move a table's history up to a commit. Safe to repeat, and to kill.

    Where the source has forgotten what is next, as after it was filled anew, the archive goes on
    where the source's history begins, and says so to who reads across.

    Args:
        source: whose history it is.
        archive: what takes it.
        table: which one.
        until: move no commit above it.
        deltas_max: about where to stop; a batch is moved whole.

    Errors: what either gives; what was moved stays moved.
    """
    try:
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
            new = archive.insert_deltas(TableBatch(table, at, upto, deltas)).unwrap().deltas
            if new and archive.is_cleared(table, upto).unwrap():
                archive.withdraw(table, at, upto).unwrap()
                break
            moved, at = moved + new, upto
            if moved >= deltas_max:
                break
        if old := min(at, last):
            source.forget_history(table, old).unwrap()
        return Ok(Copied(table, moved, at))
    except LakeSyncError as error:
        return Err(error)


def _beginning(source: DatabaseAdapter, table: str, low: Stamp, high: Stamp) -> Stamp:
    """Give where the source's history begins, between what it has forgotten and what it has."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_forgotten(source, table, middle):
            low = middle
        else:
            high = middle
    return high
