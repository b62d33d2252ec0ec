"""The captured tables of MySQL or MariaDB: which can be captured, and their logged columns."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.errors import AdapterRefused
from lakesync.systems.mysql import binlog_events as tm
from lakesync.systems.mysql.binlog_rows import BINARY, decoder_of, json_from
from lakesync.systems.mysql.mysql_source import MySqlValues
from lakesync.systems.sql.captured_tables import CapturableTables, CapturedTable
from lakesync.systems.sql.database_values import boolean, json_value, same
from lakesync.systems.sql.sql_settings import place_of
from lakesync.systems.sql.table_plan import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.systems.mysql.binlog_events import LoggedColumn, LoggedTable
    from lakesync.systems.sql.sql_settings import PolledTable

# --- tables ---------------------------------------------------------------------------------------


_COLUMNS: Final = """
    SELECT c.TABLE_SCHEMA, c.TABLE_NAME, t.TABLE_TYPE, c.COLUMN_NAME, c.COLUMN_TYPE,
           coalesce(s.SEQ_IN_INDEX, 0), coalesce(c.CHARACTER_SET_NAME, ''),
           c.EXTRA LIKE '%%VIRTUAL%%'
    FROM information_schema.COLUMNS c
    JOIN information_schema.TABLES t
         ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
    LEFT JOIN information_schema.STATISTICS s ON s.TABLE_SCHEMA = c.TABLE_SCHEMA
         AND s.TABLE_NAME = c.TABLE_NAME AND s.COLUMN_NAME = c.COLUMN_NAME
         AND s.INDEX_NAME = 'PRIMARY'
    WHERE (c.TABLE_SCHEMA, c.TABLE_NAME) IN ({})
    ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION"""
_CASCADES: Final = """
    SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME
    FROM information_schema.REFERENTIAL_CONSTRAINTS
    WHERE (CONSTRAINT_SCHEMA, TABLE_NAME) IN ({})
      AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))"""

_VALUES: Final = MySqlValues()


class TableLook(NamedTuple):
    """A table at the source."""

    schema: str
    table: str
    columns: Mapping[str, str]
    """SQL types by column name, without columns that are computed when they are read."""
    primary_key: tuple[str, ...]
    charsets: Mapping[str, str]
    """The character sets of text columns."""
    computed: frozenset[str]
    """Columns that are computed when they are read: not every log has them, and none their
    changes."""
    table_id: int = 0
    """Always 0: the source has no number for a table; the log shows when one is replaced."""
    is_published: bool = True
    parts: str = ""
    """Always empty: statements on partitions are in the log."""


class Tables(CapturableTables[TableLook]):
    """The tables of one connector.

    Attributes:
        database: the schema of names without one.
        reached: the position up to which the log was read, in the form for
            `lakesync.systems.mysql.binlog.wait`.
    """

    def __init__(self, database: str, settings: Mapping[str, PolledTable]) -> None:
        super().__init__(settings, _VALUES)
        self.database = database
        self.reached = ""
        self.image = "FULL"
        self.is_folded = False
        self._names: dict[tuple[str, str], str] = {}

    def look(self, cursor: Any) -> None:
        asked = {name: self.place(name) for name in self.settings}
        places = ", ".join(["(%s, %s)"] * len(asked))
        values = [part for place in asked.values() for part in place]
        cursor.execute(_COLUMNS.format(places), values)
        rows: dict[tuple[str, str], list[Sequence[Any]]] = {}
        for row in cursor.fetchall():
            rows.setdefault(self._folded(row[0], row[1]), []).append(row)
        cursor.execute(_CASCADES.format(places).replace("%%", "%"), values)
        cascades = {self._folded(schema, table): name for schema, table, name in cursor.fetchall()}
        self.faults, self.looks, self._names = {}, {}, {}
        for name, (schema, table) in asked.items():
            place = self._folded(schema, table)
            fault = self._fault(name, rows.get(place, ()), cascades.get(place))
            if fault:
                self.faults[name] = fault
            else:
                self.looks[name] = _look(schema, table, rows[place])
                self._names[place] = name

    def name_of(self, schema: str, table: str) -> str | None:
        """Return the name in the settings of a table in the log; None if it is not captured."""
        return self._names.get(self._folded(schema, table))

    def place(self, name: str) -> tuple[str, str]:
        """Return the schema and the table that a name in the settings means."""
        schema, table = place_of(name)
        return schema or self.database, table

    def publish(self, cursor: Any, *, is_made: bool) -> bool:  # noqa: ARG002 - as other sources
        """Do nothing: the log contains all tables."""
        if not self.looks:
            raise AdapterRefused(" ".join(self.faults.values()))
        return False

    def plan(self, cursor: Any, name: str) -> Plan:  # noqa: ARG002 - as other sources
        look = self.looks.get(name)
        if look is None:
            raise AdapterRefused(self.faults.get(name, f"there is no table {name}"))
        table = SourceTable(name, self._source_columns(look), look.primary_key)
        return plan_of(self.settings[name], table, _VALUES)

    def xid(self, cursor: Any) -> str:  # noqa: ARG002 - as other sources
        """Return the position up to which the log must be visible before a table is read."""
        return self.reached

    def _folded(self, schema: str, table: str) -> tuple[str, str]:
        return (schema.lower(), table.lower()) if self.is_folded else (schema, table)

    def _fault(self, name: str, rows: Sequence[Sequence[Any]], cascade: str | None) -> str:
        if not rows:
            return f"there is no table {name}, or the user may not see it."
        if rows[0][2] not in {"BASE TABLE", "SYSTEM VERSIONED"}:
            return f"{name} is not a table: changes of views cannot be captured."
        primary = [row[3] for row in rows if row[5]]
        key = self.settings[name].key or primary
        if not key:
            return f"{name} has no primary key: name the columns that identify a row in key."
        if self.image != "FULL" and set(key) != set(primary):
            return f"{name} does not tell the key {', '.join(key)}: set binlog_row_image = FULL."
        if cascade:
            return (
                f"{name} is changed by a foreign key ({cascade}: CASCADE or SET NULL), and the log "
                "does not tell these changes: poll it by difference, in a connector without changes"
            )
        return ""


def _look(schema: str, table: str, rows: Sequence[Sequence[Any]]) -> TableLook:
    keyed = sorted((row[5], row[3]) for row in rows if row[5])
    columns = {row[3]: row[4] for row in rows if not row[7]}
    charsets = {row[3]: row[6] for row in rows}
    computed = frozenset(row[3] for row in rows if row[7])
    return TableLook(schema, table, columns, tuple(name for _, name in keyed), charsets, computed)


# --- columns --------------------------------------------------------------------------------------


_KINDS: Final[Mapping[int, str]] = {
    tm.TINY: "integer", tm.SHORT: "integer", tm.INT24: "integer", tm.LONG: "integer",
    tm.LONGLONG: "integer", tm.FLOAT: "number", tm.DOUBLE: "number", tm.DATE: "date",
    tm.DATETIME: "timestamp", tm.TIMESTAMP: "timestamp", tm.BIT: "bytes", tm.JSON: "json",
}  # fmt: skip
_TEXTS: Final = frozenset({tm.ENUM, tm.SET, tm.DECIMAL, tm.TIME})
"""Types whose readers return text."""
_ADDRESSES: Final[Mapping[str, Callable[[bytes], str]]] = {
    "uuid": lambda data: str(UUID(bytes=data)),
    "inet4": lambda data: socket.inet_ntop(socket.AF_INET, data),
    "inet6": lambda data: socket.inet_ntop(socket.AF_INET6, data),
}
"""MariaDB's types that are read as text, but are bytes in its log."""


def captured_table(logged: LoggedTable, look: TableLook, settings: PolledTable) -> CapturedTable:
    """Return how a table's logged rows are decoded.

    Args:
        logged: the table as the log describes it.
        look: the current table; its column types are more precise than the log's, if they agree.
        settings: which of its columns are wanted.

    Raises:
        AdapterRefused: a configured column is missing.
    """
    kinds = {
        column.name: _kind(column, look.columns.get(column.name, ""))
        for column in logged.columns
        if column.name not in look.computed
    }
    columns = tuple(
        SourceColumn(name, kind, source_type=look.columns.get(name, ""))
        for name, kind in kinds.items()
    )
    is_same = set(logged.key) == set(look.primary_key)
    key = look.primary_key if is_same else logged.key
    plan = plan_of(settings, SourceTable(settings.name, columns, key), _VALUES)
    place_of = {column.name: place for place, column in enumerate(logged.columns)}
    places = tuple(place_of[name] for name in plan.columns)
    converts = tuple(
        _convert(logged.columns[at], look.columns.get(name, ""), kind, look.charsets.get(name, ""))
        for at, kind, name in zip(places, plan.types, plan.columns, strict=True)
    )
    return CapturedTable(plan, places, converts, plan.key_places)


def _kind(column: LoggedColumn, sql_type: str) -> str:
    """Return a column's type: the current table's, if it agrees with the log's."""
    logged = _KINDS.get(column.type, "string")
    if column.type == tm.LONGLONG and column.is_unsigned:
        logged = "string"
    elif column.type == tm.DECIMAL:
        logged = _VALUES.column_type(f"decimal({column.meta & 0xFF},{column.meta >> 8})")
    elif column.type in {tm.VARCHAR, tm.STRING, tm.BLOB} and column.charset == BINARY:
        logged = "bytes"
    declared = _VALUES.column_type(sql_type) if sql_type else logged
    if declared in {logged, "string"} or (declared == "boolean" and column.type == tm.TINY):
        return declared
    is_decimal = declared.startswith("decimal") and column.type == tm.DECIMAL
    return declared if is_decimal else logged


def _convert(column: LoggedColumn, sql_type: str, kind: str, charset: str) -> Callable[[Any], Any]:
    if column.type == tm.JSON:
        return lambda value: json_value(json_from(value), "")
    if column.charset == BINARY and sql_type in _ADDRESSES:
        return _ADDRESSES[sql_type]
    if column.type in {tm.VARCHAR, tm.STRING, tm.BLOB} and column.charset != BINARY:
        return decoder_of(column, charset)
    if kind == "boolean":
        return boolean
    if (kind == "integer" and column.type != tm.LONGLONG) or column.type in _TEXTS:
        return same
    return lambda value: json_value(value, kind)
