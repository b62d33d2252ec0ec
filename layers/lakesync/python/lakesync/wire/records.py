"""Rows as bytes: merged states as they are stored, runs of deltas as they are paged and sent.

A row state is one binary attribute in the buffer, one blob in a client's database. Equal states
give equal bytes: columns are sorted by name, and writers are listed in the order in which the
sorted columns first name them.

The bytes are those of the protobuf message ``RowState``, written by hand. A row is encoded once for
each delta that changes it, at the gateway and at the client, and making the message's objects only
to serialise them costs twice as much. Decoding is protobuf's own.

A run is the one form in which a delta is stored, paged and sent: a protobuf ``SyncResponse`` with
only deltas. Protobuf messages concatenate, so the answer to a pull is the stored runs joined,
followed by the cursor: nothing is decoded.

- Readers of a million rows read a run without decoding its columns. Most rows of a first sync are
  one insert each, and the reader needs only the values, so rows with the same columns are decoded
  together.
- Stored row states are turned into runs and back, bytes to bytes, to send tables. A row state
  contains columns in nearly the bytes in which a delta is sent, so they are copied, not decoded;
  only the deltas' ids must be computed. A row that was once deleted, or with a write that may
  exceed one delta, is decoded and split by `lakesync.core.merge.deltas_of`, which defines the right
  deltas. Both ways give the same bytes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.delta import (
    COLUMNS_MAX,
    DELTA_BYTES_MAX,
    DELTA_ID_CHARS,
    ROW_ID_BYTES_MAX,
    Delta,
    Op,
    delta_id_of,
)
from lakesync.core.merge import EMPTY, RowState, deltas_of
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.log_entries import delta_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson

# --- row states -----------------------------------------------------------------------------------


_ALIVE: Final = b"\x09"
_DELETED: Final = b"\x11"
_STATE_WRITER: Final = b"\x1a"
_STATE_COLUMN: Final = b"\x22"
_STATE_HLC: Final = b"\x09"
_CLIENT: Final = b"\x12"
_NAME: Final = b"\x0a"
_STATE_VALUE: Final = b"\x12"
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
    inside = _NAME + varint(len(encoded)) + encoded + _STATE_VALUE + varint(size)
    return _STATE_COLUMN + varint(len(inside) + size + behind) + inside


@lru_cache(_NAMES_REMEMBERED)
def _writer(client_id: str) -> tuple[bytes, bytes]:
    """Return the bytes before and behind a writer's stamp."""
    client = text_field(_CLIENT, client_id)
    return _STATE_WRITER + varint(1 + 8 + len(client)) + _STATE_HLC, client


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


# --- deltas as runs -------------------------------------------------------------------------------


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

    The bytes are protobuf's, written by hand in a third of the time. All that
    writes waits for them, and making protobuf's objects costs more than encoding their content.
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


# --- runs decoded by column -----------------------------------------------------------------------


_VALUE: Final = 0x12
"""Field numbers and wire types of a column."""


def raw_records(run: bytes) -> Sequence[pb.RawDelta]:
    """Get the records of a run that `encode_records` made. Never use it for bytes from outside."""
    return pb.RawRecords.FromString(run).deltas


def delta_of(record: pb.RawDelta) -> Delta:
    """Return the delta of a record."""
    return Delta(
        OPS[record.op],  # type: ignore[arg-type]  # our own records always have an op
        record.table,
        record.row_id,
        record.client_id,
        record.hlc,
        tuple([_column(raw) for raw in record.columns]),
        record.delta_id,
    )


def values_alike(column: Sequence[bytes]) -> tuple[str, list[CanonicalJson]] | None:
    """Return the common column name of some rows, and their values; None if names differ.

    Cost: 0.2 us a row.
    """
    first = column[0]
    at = first[1] + 3 if first[:1] == _NAME else len(first)
    head = first[:at]
    alike = [raw for raw in column if raw.startswith(head)]
    if at >= len(first) or first[at - 1] != _VALUE or len(alike) != len(column):
        return None
    # Most values are so short that their size, which precedes them, fits one byte.
    start = at + 1
    values = [raw[start:] if raw[at] == len(raw) - start else _column(raw)[1] for raw in column]
    return _text(head[2:-1]), values


def columns_of(raws: Iterable[bytes]) -> tuple[tuple[str, ...], tuple[CanonicalJson, ...]]:
    """Return the names and the values of one record's columns; there is at least one."""
    names, values = zip(*[_column(raw) for raw in raws], strict=True)
    return names, values


def _column(raw: bytes) -> tuple[str, CanonicalJson]:
    at = raw[1] + 3 if raw[:1] == _NAME else len(raw)
    if at < len(raw) and raw[at - 1] == _VALUE and raw[at] == len(raw) - at - 1:
        return _text(raw[2 : at - 1]), raw[at + 1 :]
    column = pb.ColumnDelta.FromString(raw)
    return column.column, column.value


@lru_cache(_NAMES_REMEMBERED)
def _text(encoded: bytes) -> str:
    return encoded.decode()


# --- row states as runs ---------------------------------------------------------------------------


_WRITER: Final = 0x1A
_COLUMN: Final = 0x22
"""Field numbers and wire types of a row state; see `lakesync.wire.records`."""
_STAMP_BYTES: Final = 9
"""A stamp with its tag."""
_MORE: Final = 0x80
_INSERT: Final = b"\x08\x01"
_UPDATE: Final = b"\x08\x02"


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
        by_stamp = sorted(writes, key=lambda write: (write.hlc[::-1], _client_in(write.client)))
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
        delta_id = delta_id_of(_client_in(client), tuple(columns), stamp, row_id, self._table)
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
        name = _name_in(state[at + 2 : value])
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
        name = _name_in(state[at + 2 : value])
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
def _name_in(encoded: bytes) -> str:
    return encoded.decode()


@lru_cache(_NAMES_REMEMBERED)
def _client_in(field: bytes) -> str:
    """Return the client id of its field; a size of 128 bytes takes two bytes."""
    _, at = _length(field, 1)
    return field[at:].decode()
