"""A merged row as bytes: one binary attribute in the buffer, one blob in a client's database.

Equal states give equal bytes: columns are sorted by name, and writers are listed in the order in
which the sorted columns first name them.

The bytes are those of the protobuf message ``RowState``, written by hand. A row is encoded once for
each delta that changes it, at the gateway and at the client, and making the message's objects only
to serialise them costs twice as much. Decoding is protobuf's own.
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
_OPENINGS: Final = 48
"""Sizes of values whose preceding bytes are cached; larger ones are rare."""
_TWO_BYTES: Final = 128
"""The first number that does not fit one byte."""


def encode_row_state(state: RowState) -> bytes:
    """Return the bytes of a row state."""
    alive, deleted, columns = state
    head = [_ALIVE, alive.to_bytes(8, "little")] if alive else []
    if deleted:
        head += (_DELETED, deleted.to_bytes(8, "little"))
    body: list[bytes] = []
    indexes: dict[tuple[int, str], bytes] = {}
    last, writer, writer_index = -1, "", b""
    for name, openings in _shape(tuple(columns)):
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
        if writer_index or size >= _OPENINGS:
            body += (_opening(name, size, len(writer_index)), value, writer_index)
        else:
            body += (openings[size], value)
    return b"".join(head + body)


def decode_row_state(encoded: bytes | None) -> RowState:
    """Return the row state of bytes that `encode_row_state` made; `EMPTY` for None."""
    if encoded is None:
        return EMPTY
    message = pb.RowState.FromString(encoded)
    writers = [(writer.hlc, writer.client_id) for writer in message.writers]
    columns = {column.name: (*writers[column.writer], column.value) for column in message.columns}
    return RowState(message.alive, message.deleted, columns)


@lru_cache(_SHAPES_REMEMBERED)
def _shape(names: tuple[str, ...]) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    """Give, in order, each column's name and the bytes before its value, by the value's size.

    Rows of a table mostly have the same columns, in the order in which they were written.
    """
    return tuple((name, openings(name)) for name in sorted(names))


@lru_cache(_NAMES_REMEMBERED)
def openings(name: str) -> tuple[bytes, ...]:
    """Return the bytes before a column's value of the first writer, by the value's size."""
    return tuple(_opening(name, size, 0) for size in range(_OPENINGS))


def column_opening(name: str, size: int) -> bytes:
    """Return the bytes before a column's value of a size: the same in a delta as in a state."""
    return openings(name)[size] if size < _OPENINGS else _opening(name, size, 0)


def _opening(name: str, size: int, behind: int) -> bytes:
    """Return the bytes before a column's value of a size, with some bytes behind it."""
    encoded = name.encode()
    inside = _NAME + varint(len(encoded)) + encoded + _VALUE + varint(size)
    return _COLUMN + varint(len(inside) + size + behind) + inside


@lru_cache(_NAMES_REMEMBERED)
def _writer(client_id: str) -> tuple[bytes, bytes]:
    """Return the bytes before and behind a writer's stamp."""
    client = text_field(_CLIENT, client_id)
    return _WRITER + varint(1 + 8 + len(client)) + _HLC, client


def _index(index: int) -> bytes:
    """Get the field that names a column's writer; it is left out for the first one, which is 0."""
    return _INDEX + varint(index) if index else b""


def text_field(tag: bytes, text: str) -> bytes:
    """Return a field of text; protobuf leaves out empty text."""
    encoded = text.encode()
    return tag + varint(len(encoded)) + encoded if encoded else b""


@lru_cache(_NAMES_REMEMBERED)
def varint(number: int) -> bytes:
    """Return a number, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number >= _TWO_BYTES:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
