"""The rows of a gateway that came from a connector, by which deletions are detected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.storage import Brought
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from lakesync.connectors.storage import TellsBrought
    from lakesync.core.merge import RowState
    from lakesync.ports import Rows

SLICE_ROWS_MAX: Final = 500
"""Rows of the gateway that are looked at, at a time."""


def brought_by(client_id: str, gateway: str, rows: Rows) -> TellsBrought:
    """Return a view of a gateway's rows that a client has written to."""

    def brought(table: str, place: str) -> Brought:
        row_slice = rows.scan_rows(gateway, table, place, SLICE_ROWS_MAX)
        row_ids = tuple(
            row_id
            for row_id, stored in row_slice.rows
            if _is_by(decode_row_state(stored.state), client_id)
        )
        return Brought(row_ids, row_slice.place)

    return brought


def _is_by(state: RowState, client_id: str) -> bool:
    return any(writer == client_id for _, writer, _ in state.columns.values())
