"""A merged row as bytes: one binary attribute in the buffer, one blob in a client's database.

Equal states give equal bytes: columns are sorted by name, and writers stand in the order in which
the sorted columns first name them.

The bytes are those of the protobuf message ``RowState``, put together by hand: a row is encoded
once for each delta that changes it, at the gateway and at the client, and making the message's
objects only to serialise them costs twice as much. Decoding is protobuf's own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lakesync.core.merge import EMPTY, RowState
from lakesync.wire import lakesync_pb2 as pb

_ALIVE: Final = b"\x09"
_DELETED: Final = b"\x11"
_WRITER: Final = b"\x1a"
_COLUMN: Final = b"\x22"
_HLC: Final = b"\x09"
_CLIENT: Final = b"\x12"
_NAME: Final = b"\x0a"
_VALUE: Final = b"\x12"
_INDEX: Final = b"\x18"
"""Field numbers and wire types, as the schema has them."""
_NAMES_REMEMBERED: Final = 4_096
_SHAPES_REMEMBERED: Final = 512
_ONE_BYTE: Final = tuple(bytes((size,)) for size in range(0x80))
_TWO_BYTES: Final = 128
"""The first number that does not fit one byte."""


def encode_row_state(state: RowState) -> bytes:
    """Give the bytes of a row state."""
    alive, deleted, columns = state
    head = [_ALIVE, alive.to_bytes(8, "little")] if alive else []
    if deleted:
        head += (_DELETED, deleted.to_bytes(8, "little"))
    body: list[bytes] = []
    indexes: dict[tuple[int, str], bytes] = {}
    last, writer, writer_index = -1, "", b""
    for name, prefix, fixed in _shape(tuple(columns)):
        hlc, client_id, value = columns[name]
        if hlc != last or client_id != writer:
            last, writer = hlc, client_id
            known = indexes.get((hlc, client_id))
            if known is None:
                known = indexes[hlc, client_id] = _index(len(indexes))
                opening, client = _writer(client_id)
                head += (opening, hlc.to_bytes(8, "little"), client)
            writer_index = known
        size = len(value)
        length = _ONE_BYTE[size] if size < _TWO_BYTES else _varint(size)
        size += fixed + len(length) + len(writer_index)
        body += (
            _COLUMN,
            _ONE_BYTE[size] if size < _TWO_BYTES else _varint(size),
            prefix,
            length,
            value,
            writer_index,
        )
    return b"".join(head + body)


def decode_row_state(encoded: bytes | None) -> RowState:
    """Give the row state of bytes that `encode_row_state` made; `EMPTY` for None."""
    if encoded is None:
        return EMPTY
    message = pb.RowState.FromString(encoded)
    writers = [(writer.hlc, writer.client_id) for writer in message.writers]
    columns = {column.name: (*writers[column.writer], column.value) for column in message.columns}
    return RowState(message.alive, message.deleted, columns)


@lru_cache(_SHAPES_REMEMBERED)
def _shape(names: tuple[str, ...]) -> list[tuple[str, bytes, int]]:
    """Give, in order, each column's name, what stands before its value, and how long that is.

    Rows of a table mostly have the same columns, in the order in which they were written.
    """
    return [(name, prefix := _name(name), len(prefix)) for name in sorted(names)]


def _name(name: str) -> bytes:
    """Give the field that names a column, and the tag of its value."""
    encoded = name.encode()
    return _NAME + _varint(len(encoded)) + encoded + _VALUE


@lru_cache(_NAMES_REMEMBERED)
def _writer(client_id: str) -> tuple[bytes, bytes]:
    """Give what stands before and behind a writer's stamp."""
    encoded = client_id.encode()
    client = _CLIENT + _varint(len(encoded)) + encoded if encoded else b""
    return _WRITER + _varint(1 + 8 + len(client)) + _HLC, client


def _index(index: int) -> bytes:
    """Give the field that names a column's writer; the first one's is left out, being 0."""
    return _INDEX + _varint(index) if index else b""


def _varint(number: int) -> bytes:
    """Give a number, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number >= _TWO_BYTES:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
