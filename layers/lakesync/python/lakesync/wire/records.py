"""Runs of deltas: the one form in which a delta is stored, paged and sent.

A run is a protobuf ``SyncResponse`` with only deltas. Protobuf messages concatenate, so the answer
to a pull is the stored runs joined, followed by the cursor: nothing is decoded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import ROW_ID_BYTES_MAX, Delta, Op
from lakesync.core.identity import DELTA_ID_CHARS
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.row_state import column_opening, openings, text_field, varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.values import CanonicalJson

_DELTA: Final = b"\x0a"
_ROW_ID: Final = b"\x1a"
_HLC: Final = b"\x29"
_CLIENT_ID: Final = b"\x32"
_DELTA_ID: Final = b"\x3a"
"""Field numbers and wire types of a run and its deltas, as the schema has them."""
_REMEMBERED: Final = 1_024
_ROW_OPENINGS: Final = tuple(_ROW_ID + varint(size) for size in range(ROW_ID_BYTES_MAX + 1))
"""The bytes before a row's id, by its size."""
OPS: Final = (None, Op.INSERT, Op.UPDATE, Op.DELETE, Op.REMOVE)


def encode_records(deltas: Iterable[Delta]) -> bytes:
    """Return the run of some deltas."""
    return b"".join(map(encode_record, deltas))


def encode_record(delta: Delta) -> bytes:
    """Return the run of one delta.

    The bytes are protobuf's, written by hand in a third of the time. Each edit of a client, each
    commit and each batch waits for them, and making protobuf's objects costs more than encoding
    their content.
    """
    op, table, row_id, client_id, hlc, columns, delta_id = delta
    parts = [_table(op, table), text_field(_ROW_ID, row_id)]
    for name, value in columns:
        parts += (column_opening(name, len(value)), value)
    if hlc:
        parts += (_HLC, hlc.to_bytes(8, "little"))
    parts += (_client(client_id), text_field(_DELTA_ID, delta_id))
    record = b"".join(parts)
    return _DELTA + varint(len(record)) + record


class RecordTemplate:
    """The common bytes of the runs of a client's deltas of one kind, with given columns of a table.

    Args:
        op: the deltas' operation.
        table: the table.
        names: the columns, in their order.
        client_id: the client.
    """

    __slots__ = ("_columns", "_front", "_middle", "_names")

    def __init__(self, op: Op, table: str, names: Iterable[str], client_id: str) -> None:
        self._front = _table(op, table)
        self._names = tuple(names)
        self._columns = [openings(name) for name in self._names]
        self._middle = _client(client_id) + _DELTA_ID + varint(DELTA_ID_CHARS)

    def encode(
        self, row_id: str, hlc: Stamp, values: Sequence[CanonicalJson], delta_id: str
    ) -> bytes:
        """Return the run of one delta, in half the time of `encode_record`."""
        try:
            fields = [
                of_size[len(value)] + value
                for of_size, value in zip(self._columns, values, strict=True)
            ]
        except IndexError:  # an unusually long value
            fields = [
                column_opening(name, len(value)) + value
                for name, value in zip(self._names, values, strict=True)
            ]
        row = row_id.encode()
        fields += (_HLC, hlc.to_bytes(8, "little"), self._middle, delta_id.encode())
        record = b"".join((self._front, _ROW_OPENINGS[len(row)], row, *fields))
        return _DELTA + varint(len(record)) + record


@lru_cache(_REMEMBERED)
def _table(op: Op, table: str) -> bytes:
    """Return the bytes before a row's id."""
    return pb.RowDelta(op=op, table=table).SerializeToString()  # type: ignore[arg-type]  # to protobuf an enum is a plain integer


@lru_cache(_REMEMBERED)
def _client(client_id: str) -> bytes:
    return text_field(_CLIENT_ID, client_id)


def decode_records(run: bytes) -> list[Delta]:
    """Get the deltas of a run that `encode_records` made. Never use it for bytes from outside."""
    return [trusted_delta(record) for record in pb.SyncResponse.FromString(run).deltas]


def trusted_delta(record: pb.RowDelta) -> Delta:
    """Return the delta of a record that this system wrote itself."""
    return Delta(
        OPS[record.op],  # type: ignore[arg-type]  # our own records always have an op
        record.table,
        record.row_id,
        record.client_id,
        record.hlc,
        tuple([(column.column, column.value) for column in record.columns]),
        record.delta_id,
    )
