"""Turns stored row states into runs of deltas and back, bytes to bytes, to send tables.

A row state contains columns in nearly the bytes in which a delta is sent, so they are copied, not
decoded; only the deltas' ids must be computed. A row that was once deleted, or with a write that
may exceed one delta, is decoded and split by `lakesync.core.row_deltas`, which defines the right
deltas. Both ways give the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.delta import COLUMNS_MAX, DELTA_BYTES_MAX
from lakesync.core.identity import delta_id_of
from lakesync.core.row_deltas import deltas_of
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, varint
from lakesync.wire.rule_rows import delta_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ALIVE: Final = b"\x09"
_WRITER: Final = 0x1A
_COLUMN: Final = 0x22
"""Field numbers and wire types of a row state; see `lakesync.wire.row_state`."""
_STAMP_BYTES: Final = 9
"""A stamp with its tag."""
_MORE: Final = 0x80
_INSERT: Final = b"\x08\x01"
_UPDATE: Final = b"\x08\x02"
_NAMES_REMEMBERED: Final = 4_096


class _Write(NamedTuple):
    """What one client wrote at one stamp, as far as it won."""

    hlc: bytes
    client: bytes
    """The field, with its tag."""
    columns: list[tuple[str, bytes]]
    fields: list[bytes]
    """The same columns as they are sent."""


class RowRun(NamedTuple):
    """One row from a run of whole rows."""

    row_id: str
    run: bytes
    """Its deltas."""
    deltas: int
    values: Mapping[str, bytes] | None
    """The requested ones of its columns; None if there is no row."""


def row_runs(run: bytes, columns: frozenset[str], *, delete_wins: bool = False) -> Iterator[RowRun]:
    """Yield the rows of a run, which `RowRecords` encoded, one after the other.

    In a delete-wins table, a row without an insert does not exist; see
    `lakesync.core.merge.as_read`.

    Cost: 2 us a delta, and as much for each requested column.
    """
    records = pb.SyncResponse.FromString(run).deltas
    pairs = zip(records, delta_slices(run), strict=True)
    for row_id, group in groupby(pairs, key=lambda pair: pair[0].row_id):
        deltas = list(group)
        of_row = [record for record, _ in deltas]
        is_there = any(
            record.op == pb.DELTA_OP_INSERT or (record.columns and not delete_wins)
            for record in of_row
        )
        values = {column.column: column.value for record in of_row for column in record.columns
                  if column.column in columns} if is_there else None  # fmt: skip
        yield RowRun(row_id, b"".join([part for _, part in deltas]), len(deltas), values)


class RowRecords:
    """Encodes rows of one table."""

    def __init__(self, table: str) -> None:
        self._table = table
        encoded = table.encode()
        self._named = b"\x12" + varint(len(encoded)) + encoded + b"\x1a"

    def encode(self, row_id: str, state: bytes) -> tuple[bytes, int]:
        """Return the run of the fewest deltas that merge to a row, and their number.

        Cost: 10 us for a row of five columns, and 6 for each delta beyond the first.
        """
        alive, at = (state[1:_STAMP_BYTES], _STAMP_BYTES) if state[:1] == _ALIVE else (b"", 0)
        writes, at = _writes(state, at)
        if not writes or (alive and all(write.hlc != alive for write in writes)):
            # Deleted once, or inserted by a client of whose columns none is left.
            return self._taken_apart(row_id, state)
        if len(writes) == 1:
            writes = [writes[0]._replace(columns=_columns(state, at), fields=[state[at:]])]
        else:
            _take_columns(state, at, writes)
        may_be_large = len(state) > DELTA_BYTES_MAX
        if may_be_large or max(len(write.columns) for write in writes) > COLUMNS_MAX:
            return self._taken_apart(row_id, state)
        by_stamp = sorted(writes, key=lambda write: (write.hlc[::-1], _client(write.client)))
        runs = []
        for write in by_stamp:
            runs.append(self._run(row_id, write, _INSERT if write.hlc == alive else _UPDATE))
            if write.hlc == alive:
                alive = b""  # of several clients with one stamp, the first
        return b"".join(runs), len(runs)

    def _taken_apart(self, row_id: str, state: bytes) -> tuple[bytes, int]:
        deltas = deltas_of(self._table, row_id, decode_row_state(state))
        return encode_records(deltas), len(deltas)

    def _run(self, row_id: str, write: _Write, op: bytes) -> bytes:
        hlc, client, columns, fields = write
        encoded_id = row_id.encode()
        stamp = int.from_bytes(hlc, "little")
        delta_id = delta_id_of(_client(client), tuple(columns), stamp, row_id, self._table)
        record = b"".join((
            op, self._named, varint(len(encoded_id)), encoded_id, *fields, b"\x29", hlc,
            b"\x32", client[1:], b"\x3a\x40", delta_id.encode(),
        ))  # fmt: skip
        return b"\x0a" + varint(len(record)) + record


def _writes(state: bytes, at: int) -> tuple[list[_Write], int]:
    """Return the writers from a place on, with no columns yet, and where the columns begin."""
    writes = []
    size = len(state)
    while at < size and state[at] == _WRITER:
        length, at = _length(state, at + 1)
        hlc, client = state[at + 1 : at + _STAMP_BYTES], state[at + _STAMP_BYTES : at + length]
        writes.append(_Write(hlc, client, [], []))
        at += length
    # Each has columns, so nothing else can follow.
    return (writes if at < size and state[at] == _COLUMN else []), at


def _columns(state: bytes, at: int) -> list[tuple[str, bytes]]:
    """Return the columns from a place on, of which none names its writer."""
    columns = []
    size = len(state)
    while at < size:
        length = state[at + 1]
        at += 2
        if length >= _MORE:
            length, at = _length(state, at - 1)
        value = at + 2 + state[at + 1]
        name = _name(state[at + 2 : value])
        value += 1
        while state[value] >= _MORE:
            value += 1
        at += length
        columns.append((name, state[value + 1 : at]))
    return columns


def _take_columns(state: bytes, at: int, writes: list[_Write]) -> None:
    """Add each column from a place on to its writer."""
    size = len(state)
    while at < size:
        opens = at
        length, at = _length(state, at + 1)
        end = at + length
        value = at + 2 + state[at + 1]
        name = _name(state[at + 2 : value])
        length, value = _length(state, value + 1)
        value_end = value + length
        if value_end == end:
            _, _, columns, fields = writes[0]
            fields.append(state[opens:end])
        else:
            index, _ = _length(state, value_end + 1)
            _, _, columns, fields = writes[index]
            fields.append(b"\x22" + varint(value_end - at) + state[at:value_end])
        columns.append((name, state[value:value_end]))
        at = end


def _length(encoded: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    number = encoded[at]
    if number < _MORE:
        return number, at + 1
    number &= 0x7F
    shift = 7
    while True:
        at += 1
        byte = encoded[at]
        number |= (byte & 0x7F) << shift
        if byte < _MORE:
            return number, at + 1
        shift += 7


@lru_cache(_NAMES_REMEMBERED)
def _name(encoded: bytes) -> str:
    return encoded.decode()


@lru_cache(_NAMES_REMEMBERED)
def _client(field: bytes) -> str:
    """Return the client id of its field; a size of 128 bytes takes two bytes."""
    _, at = _length(field, 1)
    return field[at:].decode()
