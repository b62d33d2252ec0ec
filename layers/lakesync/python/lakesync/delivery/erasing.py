"""Removes everything that a destination keeps of rows: their values, history and dead letters.

Rules of this module
    1. A row that has values stays: it exists again, or its deletion has not arrived yet. Events are
       never deleted, so they are removed.
    2. Rows are removed before the history, so that after a crash between the two a repeat follows.
    3. Where there is an archive, the database's history moves there first, and only the deltas of
       the rows are removed from it. Without one, the table's whole history is forgotten.

Law E9: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.archiving import archive_table
from lakesync.adapters.copying import DELTAS_READ
from lakesync.adapters.row_images import RowImages
from lakesync.core.erasure_claims import read_erasure
from lakesync.core.merge import view
from lakesync.errors import Contention, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.delivery.desk import Desk


def erase(desk: Desk, key: str, has_time: Callable[[], bool]) -> bool:
    """Do what a claim asks for, and remove it; False if time ran out. Idempotent, safe to kill.

    Raises:
        Contention: another process wrote the table; the claim stays.
        LakeSyncError: a store or the database refused; the claim stays.
    """
    try:
        row_ids = read_erasure(desk.objects.get_object(key))
    except NotFound:
        return True  # done in the meantime
    mark = desk.mark()
    if mark:
        _remove(desk, row_ids, mark)
        if not _remove_history(desk, row_ids, mark, has_time):
            return False
        desk.database.retry_dead_letters(desk.table).unwrap()
    desk.objects.delete_object(key)
    return True


def _remove_history(
    desk: Desk, row_ids: Sequence[str], mark: Stamp, has_time: Callable[[], bool]
) -> bool:
    """Remove the history of rows up to a commit; False if time ran out."""
    archive = desk.archive()
    if archive is None:
        desk.database.forget_history(desk.table, mark).unwrap()
        return True
    with archive:
        has_more = True
        while has_more:
            if not has_time():
                return False
            moved = archive_table(
                desk.database, archive, desk.table, until=mark, deltas_max=DELTAS_READ
            )
            has_more = moved.unwrap().deltas > 0
        return archive.erase_rows(desk.table, row_ids, mark, has_time).unwrap()


def _remove(desk: Desk, row_ids: Sequence[str], mark: int) -> None:
    """Remove rows without a trace: tombstones, and what soft deletes left of them."""
    schema = desk.schema()
    is_events = bool(schema and schema.append)

    def doomed() -> list[str]:
        there = desk.database.rows_of(desk.table, row_ids).unwrap()
        return [row_id for row_id, state in there.items() if is_events or _is_gone(state)]

    gone = doomed()
    if not gone:
        return
    images = RowImages(
        desk.table, mark, mark + 1, dict.fromkeys(gone), schema, is_last=False
    )  # behind the mark, which stays
    desk.database.put_rows(images).unwrap()
    if doomed():
        raise Contention(
            "another writer just wrote the table; repeat the operation", retry_after_s=1
        )


def _is_gone(state: RowState) -> bool:
    return view(state) is None
