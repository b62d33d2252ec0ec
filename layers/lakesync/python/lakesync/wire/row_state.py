"""A merged row as bytes: one binary attribute in the buffer, one blob in a client's database.

Equal states give equal bytes: columns are sorted by name, and writers stand in the order in which
the sorted columns first name them.
"""

from __future__ import annotations

from lakesync.core.merge import EMPTY, RowState
from lakesync.wire import lakesync_pb2 as pb


def encode_row_state(state: RowState) -> bytes:
    """Give the bytes of a row state."""
    message = pb.RowState()
    message.alive = state.alive
    message.deleted = state.deleted
    places: dict[tuple[int, str], int] = {}
    columns = state.columns
    add = message.columns.add
    for name in sorted(columns):
        hlc, client_id, value = columns[name]
        place = places.setdefault((hlc, client_id), len(places))
        add(name=name, value=value, writer=place)
    for hlc, client_id in places:
        message.writers.add(hlc=hlc, client_id=client_id)
    return message.SerializeToString()


def decode_row_state(encoded: bytes | None) -> RowState:
    """Give the row state of bytes that `encode_row_state` made; `EMPTY` for None."""
    if encoded is None:
        return EMPTY
    message = pb.RowState.FromString(encoded)
    writers = [(writer.hlc, writer.client_id) for writer in message.writers]
    columns = {column.name: (*writers[column.writer], column.value) for column in message.columns}
    return RowState(message.alive, message.deleted, columns)
