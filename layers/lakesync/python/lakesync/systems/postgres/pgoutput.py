"""Messages of PostgreSQL's output plugin `pgoutput`, protocol version 1, as values. Pure.

Described in PostgreSQL's documentation, "Logical Replication Message Formats". Values are in the
printed form of the source's types.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.systems.sql.captured_tables import UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.systems.sql.captured_tables import Row, Value


_EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL counts from 2000-01-01."""
_BEGIN: Final = Struct(">QqI")
_COMMIT: Final = Struct(">BQQq")
_U32: Final = Struct(">I")
_I32: Final = Struct(">i")
_U16: Final = Struct(">H")
_COLUMN: Final = Struct(">Ii")
_NULL, _UNCHANGED = ord("n"), ord("u")
_OLD_KINDS: Final = b"KO"


class RelationColumn(NamedTuple):
    """A column, as it was when the rows that follow were written."""

    name: str
    type_id: int
    modifier: int
    in_identity: bool
    """Whether it belongs to the replica identity, by which old rows are identified."""


class Relation(NamedTuple):
    """A table; sent before its first row, and again after it was altered."""

    table_id: int
    schema: str
    name: str
    identity: str
    """``d`` primary key, ``i`` an index, ``f`` whole rows, ``n`` nothing."""
    columns: tuple[RelationColumn, ...]


class Begin(NamedTuple):
    """A transaction begins; transactions arrive one after another, in the order of commits."""

    commit_lsn: int
    commit_us: int
    xid: int


class Commit(NamedTuple):
    """A transaction was committed; ``end_lsn`` is the position behind it."""

    commit_lsn: int
    end_lsn: int
    commit_us: int


class Insert(NamedTuple):
    """A row was inserted."""

    table_id: int
    new: Row


class Update(NamedTuple):
    """A row changed. ``old`` is present if its key changed, or the replica identity is full."""

    table_id: int
    new: Row
    old: Row | None = None
    old_is_whole: bool = False


class Delete(NamedTuple):
    """A row was deleted. ``old`` has only the identity's columns, unless that is full."""

    table_id: int
    old: Row
    old_is_whole: bool = False


class Truncate(NamedTuple):
    """Some tables were truncated."""

    table_ids: tuple[int, ...]


class Other(NamedTuple):
    """A message that does not concern rows: an origin, a type, an application's message."""

    kind: str


Message: TypeAlias = Relation | Begin | Commit | Insert | Update | Delete | Truncate | Other


def decode(data: bytes) -> Message:
    """Decode a message.

    Raises:
        ValueError: it is malformed.
    """
    try:
        return _DECODERS[data[:1]](data)
    except KeyError:
        raise ValueError(f"there is no message {data[:1]!r} in pgoutput's version 1") from None
    except (error, IndexError) as exc:
        raise ValueError(f"a message {data[:1]!r} ends too early") from exc


def _begin(data: bytes) -> Begin:
    commit_lsn, microseconds, xid = _BEGIN.unpack_from(data, 1)
    return Begin(commit_lsn, microseconds + _EPOCH_US, xid)


def _commit(data: bytes) -> Commit:
    _, commit_lsn, end_lsn, microseconds = _COMMIT.unpack_from(data, 1)
    return Commit(commit_lsn, end_lsn, microseconds + _EPOCH_US)


def _relation(data: bytes) -> Relation:
    (table_id,) = _U32.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_id, modifier = _COLUMN.unpack_from(data, at)
        at += 8
        columns.append(RelationColumn(column, type_id, modifier, bool(flags & 1)))
    return Relation(table_id, schema, name, identity, tuple(columns))


def _insert(data: bytes) -> Insert:
    new, _ = _row(data, 6)
    return Insert(_U32.unpack_from(data, 1)[0], new)


def _update(data: bytes) -> Update:
    (table_id,) = _U32.unpack_from(data, 1)
    kind = data[5]
    if kind not in _OLD_KINDS:
        return Update(table_id, _row(data, 6)[0])
    old, at = _row(data, 6)
    return Update(table_id, _row(data, at + 1)[0], old, kind == _OLD_KINDS[1])


def _delete(data: bytes) -> Delete:
    (table_id,) = _U32.unpack_from(data, 1)
    return Delete(table_id, _row(data, 6)[0], data[5] == _OLD_KINDS[1])


def _truncate(data: bytes) -> Truncate:
    (count,) = _U32.unpack_from(data, 1)
    return Truncate(tuple(_U32.unpack_from(data, 6 + 4 * number)[0] for number in range(count)))


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    append, length_at = values.append, _I32.unpack_from
    for _ in range(count):
        kind = data[at]
        if kind == _NULL:
            append(None)
            at += 1
        elif kind == _UNCHANGED:
            append(UNCHANGED)
            at += 1
        else:
            start = at + 5
            at = start + length_at(data, at + 1)[0]
            if not start <= at <= len(data):
                raise IndexError
            append(data[start:at])
    return tuple(values), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise IndexError
    return data[at:end].decode(), end + 1


_DECODERS: Final[Mapping[bytes, Callable[[bytes], Message]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"O": lambda _: Other("origin"),
    b"Y": lambda _: Other("type"),
    b"M": lambda _: Other("message"),
}
