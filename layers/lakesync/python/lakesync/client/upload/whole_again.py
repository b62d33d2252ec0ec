"""An edit of a row that was deleted meanwhile: where rules filter, the row is sent whole again.

Of an update alone the gateway cannot tell who may see the row, so it refuses it (`ROW_DELETED`). So
when a page brings the delete of a row of which a newer update waits, the row as it was is put into
the outbox as an INSERT: just above the delete, so that it loses to any later write, and below the
update, whose cells keep their stamp. Law K37: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.client.download.pending_echo import ruled_tables
from lakesync.client.upload.entries import Status
from lakesync.core.delta import DELTA_BYTES_MAX, Op, known_delta
from lakesync.core.merge import fold
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

_STAMPS_TRIED_MAX: Final = 8
"""Stamps above a delete that are tried: the outbox has one place for each."""
_WAITS: Final = "SELECT status, run FROM _lakesync_outbox WHERE table_id = ? AND row_id = ?"


def insert_again(
    file: ClientFile,
    table: AppTable,
    by_row: Mapping[str, Sequence[Delta]],
    seen: Mapping[str, StoredRow],
) -> None:
    """Put rows that a page has deleted into the outbox, if updates of them wait.

    Used within the caller's transaction. Cost: nothing for a row of which no edit waits.

    Args:
        file: the client's.
        table: the rows' table.
        by_row: the page's deltas, which are merged by now.
        seen: the rows as they were before.
    """
    deleted = [
        row_id
        for row_id, deltas in by_row.items()
        if any(delta.op is Op.DELETE for delta in deltas)
        and row_id in seen
        and seen[row_id].base is not None
    ]
    if not deleted or table.delete_wins or table.id not in ruled_tables(file):
        return
    for row_id in deleted:
        made = _insert(file, table, row_id, fold(_writes(by_row[row_id]), seen[row_id].known))
        if made is not None:
            file.outbox.add(made, table.id)
            file.rows.refold({(table.id, row_id): None})


def _writes(deltas: Sequence[Delta]) -> list[Delta]:
    return [delta for delta in deltas if delta.op is not Op.DELETE]


def _insert(file: ClientFile, table: AppTable, row_id: str, before: RowState) -> Delta | None:
    """Return the INSERT of a row as it was; None if none is needed, or none is possible."""
    row = file.rows.one((table.id, row_id))
    deleted = row.known.deleted
    if row.known.alive or row.known.columns or row.state.alive or not row.state.columns:
        return None
    waiting = file.connection.execute(_WAITS, (table.id, row_id)).fetchall()
    first = min(
        (
            delta.hlc
            for status, run in waiting
            if status != Status.QUARANTINED
            for delta in decode_records(run)
            if delta.op is Op.UPDATE and delta.hlc > deleted
        ),
        default=0,
    )
    hlc = _free_stamp(file, deleted, first)
    columns = tuple((name, before.columns[name][2]) for name in sorted(before.columns))
    if not hlc or not columns:
        return None
    made = known_delta(Op.INSERT, table.name, row_id, file.client_id, hlc, columns)
    return made if len(encode_records((made,))) <= DELTA_BYTES_MAX else None


def _free_stamp(file: ClientFile, deleted: Stamp, before: Stamp) -> Stamp:
    """Return the first stamp behind a delete and before an update; 0 if there is none."""
    stamps = range(deleted + 1, min(before, deleted + 1 + _STAMPS_TRIED_MAX))
    return next((hlc for hlc in stamps if file.outbox.at(hlc) is None), 0)
