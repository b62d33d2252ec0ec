"""Decodes the relevant events of a binary log: transaction boundaries, rows and statements.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from lakesync.connectors.sql.binlog.numbers import packed, unsigned
from lakesync.connectors.sql.binlog.table_map import LoggedTable, table_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """The rows, as `lakesync.connectors.sql.binlog.rows` reads them."""
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
