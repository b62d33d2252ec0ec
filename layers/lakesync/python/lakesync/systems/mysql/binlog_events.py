"""Decodes the relevant events of a binary log: transaction boundaries, rows and statements.

Finds the tables that must be read again because of a statement in the log. Data definition
statements change rows without logging them. So do row changes that a session logs as statements.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# --- events ---------------------------------------------------------------------------------------


HEADER_BYTES: Final = 19
_CHECKSUM_BYTES: Final = 4
_QUERY, _ROTATE, _FORMAT, _XID, _TABLE_MAP = 2, 4, 15, 16, 19
_HEARTBEAT: Final = frozenset({27, 41})
_GTID, _ANONYMOUS, _PREPARED, _TAGGED = 33, 34, 38, 42
_MARIADB_GTID, _MARIADB_QUERY_COMPRESSED = 162, 165
_STANDALONE: Final = 1
"""MariaDB's flag of a transaction that consists of one statement, without a closing event."""
_XA: Final = 64
"""MariaDB's flag of an XA transaction that is only prepared."""
_ROWS: Final[Mapping[int, tuple[str, int]]] = {
    23: ("insert", 1), 24: ("update", 1), 25: ("delete", 1),
    30: ("insert", 2), 31: ("update", 2), 32: ("delete", 2),
    166: ("insert", 1), 167: ("update", 1), 168: ("delete", 1),
    169: ("insert", 2), 170: ("update", 2), 171: ("delete", 2),
}  # fmt: skip
_COMPRESSED: Final = frozenset(range(165, 172))
_PARTIAL: Final = 39
_UNREADABLE: Final[Mapping[int, str]] = {
    40: "binlog_transaction_compression must be OFF",
    164: "encrypt_binlog must be OFF",
}


class Begin(NamedTuple):
    """A transaction begins."""

    gtid: str
    """Its id; empty if the source assigns none."""
    commit_us: int
    """When it was committed; in whole seconds if the source's log is not more precise."""
    is_statement: bool
    """Only one statement follows, unless that is a BEGIN."""
    is_prepared: bool = False
    """It is only prepared: a later event says whether it is committed (XA)."""
    is_tagged: bool = False
    """Its id has a tag, which is not supported, so the id is not read."""


class Rows(NamedTuple):
    """Some rows of a table were inserted, updated or deleted."""

    kind: str
    table: LoggedTable
    data: bytes
    """The rows, as `lakesync.systems.mysql.binlog_rows` reads them."""
    present: tuple[int, ...]
    """The positions of the columns that the log contains for each row; for updates, of the old
    row."""
    present_after: tuple[int, ...]
    """For updates, the positions of the columns that the log contains of the new row."""


class Statement(NamedTuple):
    """A statement in SQL."""

    schema: str
    """The session's default schema."""
    sql: str


class End(NamedTuple):
    """A transaction was committed."""

    is_xa: bool = False
    """It was prepared and committed by one event."""


class Unreadable(NamedTuple):
    """An event that cannot be decoded: all tables must be read again."""

    reason: str


Event = Begin | Rows | Statement | End | Unreadable


class Decoder:
    """Decodes one stream of events.

    Args:
        is_checked: whether events end with a checksum, until the log says otherwise.
        is_mariadb: whether the log is MariaDB's.
        wanted: returns whether a table's rows are needed, by its schema and name.

    Attributes:
        file: the current file of the log.
        pos: the offset of the next event in it.
    """

    def __init__(
        self, *, is_checked: bool, is_mariadb: bool, wanted: Callable[[str, str], bool]
    ) -> None:
        self.file = ""
        self.pos = 0
        self._is_checked = is_checked
        self._is_mariadb = is_mariadb
        self._wanted = wanted
        self._tables: dict[int, LoggedTable | None] = {}

    def event(self, packet: bytes) -> Event | None:
        """Decode an event; return None if it is not relevant.

        Raises: ValueError, IndexError: it is malformed.
        """
        kind, seconds = packet[4], unsigned(packet, 0, 4)
        end = len(packet) - (_CHECKSUM_BYTES if self._is_checked else 0)
        if kind == _ROTATE:
            self.pos = unsigned(packet, HEADER_BYTES, 8)
            self.file = packet[HEADER_BYTES + 8 : end].decode()
            self._tables.clear()
            return None
        if kind == _FORMAT:
            self._is_checked = packet[-1 - _CHECKSUM_BYTES] == 1
            return None
        if kind not in _HEARTBEAT:
            self.pos = unsigned(packet, 13, 4) or self.pos
        body = packet[HEADER_BYTES:end]
        if kind == _TABLE_MAP:
            number, table = table_from(body, self._wanted, is_mariadb=self._is_mariadb)
            self._tables[number] = table
            return None
        if kind in _ROWS:
            return self._rows(body, *_ROWS[kind], is_compressed=kind in _COMPRESSED)
        if kind == _PARTIAL:
            return self._partial(body)
        if kind in _UNREADABLE:
            return Unreadable(_UNREADABLE[kind])
        return self._of_transaction(kind, body, packet, seconds)

    def _of_transaction(self, kind: int, body: bytes, packet: bytes, seconds: int) -> Event | None:
        if kind == _XID:
            return End()
        if kind == _PREPARED:
            return End(is_xa=bool(body[0]))
        if kind in {_QUERY, _MARIADB_QUERY_COMPRESSED}:
            return _statement(body, is_compressed=kind == _MARIADB_QUERY_COMPRESSED)
        if kind == _MARIADB_GTID:
            domain, server = unsigned(body, 8, 4), unsigned(packet, 5, 4)
            gtid = f"{domain}-{server}-{unsigned(body, 0, 8)}"
            return Begin(
                gtid, seconds * 1_000_000, bool(body[12] & _STANDALONE), bool(body[12] & _XA)
            )
        if kind in {_GTID, _ANONYMOUS}:
            gtid = f"{UUID(bytes=body[1:17])}:{unsigned(body, 17, 8)}" if kind == _GTID else ""
            return Begin(gtid, _mysql_us(body) or seconds * 1_000_000, is_statement=True)
        if kind == _TAGGED:
            return Begin("", seconds * 1_000_000, is_statement=True, is_tagged=True)
        return None

    def _partial(self, body: bytes) -> Statement | None:
        """Return an event with parts of JSON (`binlog_row_value_options`) as one without rows."""
        table = self._tables.get(unsigned(body, 0, 6))
        return table and Statement(table.schema, f"UPDATE {table.name}")

    def _rows(self, body: bytes, kind: str, version: int, *, is_compressed: bool) -> Event | None:
        table = self._tables.get(unsigned(body, 0, 6))
        if table is None:
            return None
        at = 8 if version == 1 else 8 + unsigned(body, 8, 2)
        width, at = packed(body, at)
        size = (width + 7) // 8
        present = _places(body[at : at + size], width)
        after, at = present, at + size
        if kind == "update":
            after, at = _places(body[at : at + size], width), at + size
        data = _uncompressed(body[at:]) if is_compressed else body[at:]
        return Rows(kind, table, data, present, after)


def begun_s(packet: bytes) -> int:
    """Return when the file was begun, in seconds, if this event states it; else 0."""
    return unsigned(packet, 0, 4) if packet[4] == _FORMAT else 0


def _mysql_us(body: bytes) -> int:
    """Return the commit time of a transaction on this MySQL 8 server, in microseconds; else 0."""
    at = 42
    return unsigned(body, at, 7) & ((1 << 55) - 1) if len(body) >= at + 7 else 0


def _statement(body: bytes, *, is_compressed: bool) -> Event | None:
    schema_size, skipped = body[8], unsigned(body, 11, 2)
    at = 13 + skipped
    schema = body[at : at + schema_size].decode("utf-8", "replace")
    data = body[at + schema_size + 1 :]
    sql = (_uncompressed(data) if is_compressed else data).decode("utf-8", "replace")
    word = sql.lstrip()[:9].upper().rstrip("; ")
    if word == "COMMIT" or (word.startswith("ROLLBACK") and " TO " not in sql[:20].upper()):
        return End()  # rolled back, except in tables without transactions
    return Statement(schema, sql)


def _places(bits: bytes, width: int) -> tuple[int, ...]:
    number = int.from_bytes(bits, "little")
    return tuple(place for place in range(width) if number >> place & 1)


def _uncompressed(data: bytes) -> bytes:
    """Decompress an event of MariaDB: a byte with the length of the size, the size, zlib's data."""
    return zlib.decompress(data[1 + (data[0] & 7) :])


# --- descriptions of tables -----------------------------------------------------------------------


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


# --- statements -----------------------------------------------------------------------------------


_COMMENTS: Final = re.compile(r"/\*(?!!).*?\*/|/\*!\d*|\*/|(?:--\s|#)[^\n]*", re.DOTALL)
_OF_TABLES: Final = re.compile(
    r"\s*(?:(?:ALTER|CREATE|DROP|RENAME)\b(?:\s+(?:OR\s+REPLACE|ONLINE|OFFLINE|IGNORE))*\s+TABLES?\b"
    r"|TRUNCATE\b|(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|MERGE|CALL)\b)",
    re.IGNORECASE,
)
_OF_SCHEMAS: Final = re.compile(r"\s*DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)
_XA_COMMIT: Final = re.compile(r"\s*XA\s+COMMIT\b", re.IGNORECASE)


def tables_in(sql: str, schema: str, tables: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the tables that a statement may have changed without logging their rows.

    Args:
        tables: the schemas and names of captured tables, by their names here.
    """
    if _XA_COMMIT.match(sql):
        return list(tables)  # its tables were reported when it was prepared
    text = _COMMENTS.sub(" ", sql)
    if _OF_SCHEMAS.match(text):
        return [name for name, (theirs, _) in tables.items() if _names(text, theirs)]
    if not _OF_TABLES.match(text):
        return []
    return [
        name
        for name, (theirs, table) in tables.items()
        if _names(text, table) and (theirs.lower() == schema.lower() or _names(text, theirs))
    ]


def _names(text: str, name: str) -> bool:
    return bool(re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE))


# --- numbers --------------------------------------------------------------------------------------


_LONG: Final = {252: 2, 253: 3, 254: 8}


def unsigned(data: bytes, at: int, size: int) -> int:
    """Read a little-endian number."""
    return int.from_bytes(data[at : at + size], "little")


def packed(data: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded number; return it and the place after it."""
    first = data[at]
    if first < min(_LONG):
        return first, at + 1
    size = _LONG[first]
    return unsigned(data, at + 1, size), at + 1 + size


def packed_text(data: bytes, at: int) -> tuple[str, int]:
    """Read a text with a length prefix; return it and the place after it."""
    size, at = packed(data, at)
    return data[at : at + size].decode("utf-8", "replace"), at + size
