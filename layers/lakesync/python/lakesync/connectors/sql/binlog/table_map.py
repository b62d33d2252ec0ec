"""The log's description of a table, when its rows were logged (`binlog_row_metadata`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.sql.binlog.numbers import packed, packed_text, unsigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

(
    TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR, VARCHAR, BIT, TIMESTAMP,
    DATETIME, TIME, VECTOR, JSON, DECIMAL, ENUM, SET, BLOB, STRING, GEOMETRY,
) = (
    1, 2, 3, 4, 5, 8, 9, 10, 13, 15, 16, 17, 18, 19, 242, 245, 246, 247, 248, 252, 254, 255,
)  # fmt: skip
_META_BYTES: Final = {
    FLOAT: 1, DOUBLE: 1, VARCHAR: 2, BIT: 2, TIMESTAMP: 1, DATETIME: 1, TIME: 1, JSON: 1,
    DECIMAL: 2, ENUM: 2, SET: 2, 249: 1, 250: 1, 251: 1, BLOB: 1, 253: 2, STRING: 2, GEOMETRY: 1,
    20: 4, 140: 1, 141: 2, VECTOR: 1,
}  # fmt: skip
_NUMBERS: Final = frozenset({TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DECIMAL, YEAR, 0})
_TEXTS: Final = frozenset({VARCHAR, 253, STRING, BLOB, VECTOR, 140, 141})
"""Types for which the log has collations."""
_SIGNS, _CHARSET, _CHARSETS, _NAMES, _SETS, _ENUMS, _KEY, _KEY_PARTS = 1, 2, 3, 4, 5, 6, 8, 9


class LoggedColumn(NamedTuple):
    """A column as the log describes it."""

    name: str
    type: int
    """The log's number for the type."""
    meta: int
    is_unsigned: bool = False
    charset: int = 0
    """The number of its collation; 0 if it is not text."""
    members: tuple[str, ...] = ()
    """The members of an enumeration or a set."""


class LoggedTable(NamedTuple):
    """A table as the log describes it."""

    number: int
    schema: str
    name: str
    columns: tuple[LoggedColumn, ...]
    key: tuple[str, ...]
    is_named: bool
    """Whether the log contains the columns' names."""


def table_from(
    body: bytes, wanted: Callable[[str, str], bool], *, is_mariadb: bool
) -> tuple[int, LoggedTable | None]:
    """Read a table's number, to which rows refer, and its description; None if it is not wanted.

    The description of an unwanted table is not read: it may have types unknown here.

    Raises: ValueError, IndexError: it is malformed.
    """
    number = unsigned(body, 0, 6)
    size, at = body[8], 9
    schema, at = body[at : at + size].decode(), at + size + 1
    size, at = body[at], at + 1
    name, at = body[at : at + size].decode(), at + size + 1
    if not wanted(schema, name):
        return number, None
    width, at = packed(body, at)
    types, at = body[at : at + width], at + width
    size, at = packed(body, at)
    typed = list(_typed(types, body[at : at + size]))
    at += size + (width + 7) // 8
    more = dict(_fields(body, at))
    names = _texts(more.get(_NAMES, b""))
    columns = tuple(_columns(typed, names, more, is_mariadb=is_mariadb))
    key = [columns[place].name for place in _key(more)]
    is_named = len(names) == width
    return number, LoggedTable(number, schema, name, columns, tuple(key), is_named)


def _typed(types: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each column's type, and the metadata of the type."""
    at = 0
    for kind in types:
        size = _META_BYTES.get(kind, 0)
        meta = unsigned(data, at, size)
        if kind == STRING:
            kind, meta = _string(data[at], data[at + 1])  # noqa: PLW2901 - what it really is
        at += size
        yield kind, meta


def _string(high: int, low: int) -> tuple[int, int]:
    """Distinguish enumerations and sets from text, whose length has two bits in its type."""
    if high in {ENUM, SET}:
        return high, low
    return STRING, low | (((high & 0x30) ^ 0x30) << 4)


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        kind = body[at]
        size, at = packed(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _columns(
    typed: Sequence[tuple[int, int]], names: Sequence[str], more: dict[int, bytes], *,
    is_mariadb: bool,
) -> Iterator[LoggedColumn]:  # fmt: skip
    signs, sign = more.get(_SIGNS, b""), 0
    geometry = {GEOMETRY} if is_mariadb else set()
    texts = [place for place, (kind, _) in enumerate(typed) if kind in _TEXTS | geometry]
    charsets = _charsets(more, texts)
    enums, sets = iter(_members(more.get(_ENUMS, b""))), iter(_members(more.get(_SETS, b"")))
    for place, (kind, meta) in enumerate(typed):
        is_unsigned = False
        if kind in _NUMBERS:
            is_unsigned = bool(signs) and bool(signs[sign // 8] << sign % 8 & 0x80)
            sign += 1
        members: Any = ()
        if kind == ENUM:
            members = next(enums, ())
        elif kind == SET:
            members = next(sets, ())
        name = names[place] if place < len(names) else ""
        charset = charsets.get(place, 0)
        yield LoggedColumn(name, kind, meta, is_unsigned, charset, tuple(members))


def _charsets(more: dict[int, bytes], texts: Sequence[int]) -> dict[int, int]:
    """Return the collations of text columns: each its own, or one for all with exceptions."""
    if _CHARSETS in more:
        return dict(zip(texts, _numbers(more[_CHARSETS]), strict=True))
    default, *pairs = _numbers(more.get(_CHARSET, b"")) or [0]
    others = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return {place: others.get(number, default) for number, place in enumerate(texts)}


def _key(more: dict[int, bytes]) -> list[int]:
    """Return the positions of the primary key's columns, in its order."""
    if _KEY in more:
        return _numbers(more[_KEY])
    return _numbers(more.get(_KEY_PARTS, b""))[::2]


def _numbers(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = packed(data, at)
        numbers.append(number)
    return numbers


def _texts(data: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(data):
        text, at = packed_text(data, at)
        texts.append(text)
    return texts


def _members(data: bytes) -> Iterator[list[str]]:
    at = 0
    while at < len(data):
        count, at = packed(data, at)
        members = []
        for _ in range(count):
            text, at = packed_text(data, at)
            members.append(text)
        yield members
