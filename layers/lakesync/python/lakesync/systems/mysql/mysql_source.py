"""MySQL and MariaDB as a source: values, catalogue, and the columns of queries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from lakesync.actions.engine import HandlerType
from lakesync.adapters.network import context_of
from lakesync.connectors.port import SourceColumn
from lakesync.core.column_types import DECIMAL_DIGITS_MAX
from lakesync.systems.sql.database_values import Bound, PythonValues, base64_text, bytes_from, same
from lakesync.systems.sql.sql_actions import (
    STATEMENT_S_MAX,
    WAIT_S_MAX,
    SqlActionSettings,
    SqlStatements,
)
from lakesync.systems.sql.sql_settings import place_of
from lakesync.systems.sql.sql_source import SqlConnector
from lakesync.systems.sql.table_plan import (
    ANSWER_S_MAX,
    READ_S_MAX,
    check_names,
    query_fault,
    read_query,
    tables_in_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.adapters.sql.standard import Connection, Dialect
    from lakesync.connectors.port import Outside, SourceTable, Storage
    from lakesync.systems.mysql.mysql_settings import MySqlSettings
    from lakesync.systems.sql.database_values import Values

# --- values ---------------------------------------------------------------------------------------


_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\).*")
_MYSQL_TYPES: Final = (
    (re.compile(r"boolean|bool|tinyint\(1\)"), "boolean"),
    (re.compile(r"(small|big|tiny|medium)?int(eger)?\b.*"), "integer"),
    (re.compile(r"real|double.*|float.*"), "number"),
    (re.compile(r"timestamp.*|datetime.*"), "timestamp"),
    (re.compile(r"date"), "date"),
    (re.compile(r".*blob|(var)?binary.*|bit\(\d+\)"), "bytes"),
    (re.compile(r"json"), "json"),
)
_CHOICES: Final = re.compile(r"(enum|set)\((.*)\)", re.IGNORECASE | re.DOTALL)
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")
_UNORDERED: Final = re.compile(
    r"float.*|enum|set|json|geometry.*|.*point|.*linestring|.*polygon|geomcollection|vector.*"
)
"""Types that are not compared as they are printed: a float has more digits than its text, and an
ENUM or SET whose members are not known, as in a query, is sorted by their numbers."""


class MySqlValues(PythonValues):
    """`lakesync.systems.sql.database_values.Values` of MySQL and MariaDB.

    A column is altered with our type: the log has less of the types, and tells of every statement
    that alters a table.
    """

    def column_type(self, source_type: str) -> str:
        digits = _DECIMAL.fullmatch(source_type)
        if digits:
            precision, scale = int(digits[1]), int(digits[2])
            return f"decimal({precision},{scale})" if precision <= DECIMAL_DIGITS_MAX else "string"
        if source_type.startswith("bigint") and source_type.endswith("unsigned"):
            return "string"
        return next(
            (ours for theirs, ours in _MYSQL_TYPES if theirs.fullmatch(source_type)), "string"
        )

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return the form of a key in the column's own order.

        Members of ENUM and SET are sorted by their numbers, and compared so with a number.
        """
        kind = column.source_type.lower()
        choices = _CHOICES.fullmatch(column.source_type)
        if choices:
            return Bound(_number_of(choices[1].lower(), _MEMBER.findall(choices[2])), same)
        if _UNORDERED.fullmatch(kind):
            return None
        if kind.startswith("bit"):
            return Bound(lambda value: int.from_bytes(value, "big"), same)
        if column.type == "bytes":
            return Bound(base64_text, bytes_from)
        if kind.startswith("decimal"):
            return Bound("{:f}".format, Decimal)
        return Bound(_plain, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        if column.type == "bytes":
            is_number = column.source_type.lower().startswith("bit")
            return _number_from_base64 if is_number else bytes_from
        return _decimal if column.source_type.lower().startswith("decimal") else same


def _number_of(kind: str, members: Sequence[str]) -> Callable[[str], int]:
    numbers = {member.replace("''", "'"): place for place, member in enumerate(members)}
    if kind == "enum":
        return lambda text: numbers.get(text, -1) + 1  # 0 is the empty text of a wrong value
    return lambda text: sum(1 << numbers[part] for part in text.split(",") if part in numbers)


def _plain(value: str | float | date) -> str | int | float:
    """Return text and numbers as they are; days and instants, which have no zone, as text."""
    return value.isoformat() if isinstance(value, date) else value


def _number_from_base64(text: str) -> int:
    return int.from_bytes(bytes_from(text), "big")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError as exc:
        raise ValueError(f"{text[:60]} is no number") from exc


# --- the source -----------------------------------------------------------------------------------


_MYSQL_COLUMNS: Final = """
    SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE = 'NO',
           coalesce(s.SEQ_IN_INDEX, 0) - 1
    FROM information_schema.COLUMNS c
    LEFT JOIN information_schema.STATISTICS s ON s.TABLE_SCHEMA = c.TABLE_SCHEMA
         AND s.TABLE_NAME = c.TABLE_NAME AND s.COLUMN_NAME = c.COLUMN_NAME
         AND s.INDEX_NAME = 'PRIMARY'
    WHERE {} ORDER BY c.TABLE_NAME, c.ORDINAL_POSITION"""


@dataclass(frozen=True)
class MySqlSource:
    """MySQL and MariaDB."""

    settings: MySqlSettings
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.network`."""
    answer_s: float = ANSWER_S_MAX
    title: str = "MySQL"
    values: Values = field(default_factory=MySqlValues, repr=False)
    zoneless: int = 12  # DATETIME

    @cached_property
    def dialect(self) -> Dialect:
        from lakesync.systems.mysql.mysql_dialect import MySql  # noqa: PLC0415 - its driver

        settings = self.settings
        return MySql(
            settings.host, settings.user, settings.password.get_secret_value(), settings.database,
            settings.port, tls=context_of(settings.tls), hosts=self.hosts,
            answer_s=self.answer_s,
        )  # fmt: skip

    def connect(self) -> Connection:
        from pymysql.constants import FIELD_TYPE  # noqa: PLC0415 - the driver

        connection = self.dialect.connect()
        # The driver's durations have lost how many digits of a second the column has.
        decoders = connection.decoders  # type: ignore[attr-defined]  # of PyMySQL alone
        decoders.pop(FIELD_TYPE.TIME)
        cursor = connection.cursor()
        cursor.execute("SET SESSION TRANSACTION READ ONLY")
        cursor.execute("SELECT VERSION()")
        if "MariaDB" in cursor.fetchone()[0]:
            cursor.execute(f"SET SESSION max_statement_time = {READ_S_MAX}")
        else:
            cursor.execute(f"SET SESSION max_execution_time = {READ_S_MAX * 1000}")
        connection.commit()
        return connection

    def now(self, cursor: Any) -> Any:
        cursor.execute("SELECT UTC_TIMESTAMP(6)")
        return cursor.fetchone()[0]

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        if table is None:
            cursor.execute(_MYSQL_COLUMNS.format("c.TABLE_SCHEMA = DATABASE()"))
        else:
            schema, name = place_of(table)
            condition = "c.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND c.TABLE_NAME = %s"
            cursor.execute(_MYSQL_COLUMNS.format(condition), (schema or None, name))
        return tables_in_rows(cursor.fetchall(), table, self.values)

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        try:
            cursor.execute("PREPARE lakesync_query FROM %s", (query,))
            cursor.execute("DEALLOCATE PREPARE lakesync_query")
        except Exception as exc:
            raise query_fault(self.dialect, exc, name) from exc
        read_query(cursor, self.dialect, name, query, 0)
        fields = cursor._result.fields  # noqa: SLF001 - the driver shows flags nowhere else
        check_names(name, [field.name for field in fields])
        kinds = [mysql_type(field) for field in fields]
        return tuple(
            SourceColumn(field.name, self.values.column_type(kind), source_type=kind)
            for field, kind in zip(fields, kinds, strict=True)
        )


_BINARY: Final = 63
"""MySQL's number of the character set of bytes."""
_UNSIGNED: Final = 32
_ENUM: Final = 256
_SET: Final = 2048
_MYSQL_NUMBERS: Final = {1: "tinyint", 2: "smallint", 3: "int", 8: "bigint", 9: "mediumint"}
_PROTOCOL_TYPES: Final = {
    4: "float", 5: "double", 7: "timestamp", 10: "date", 11: "time", 12: "datetime", 13: "year",
    14: "date", 245: "json", 255: "geometry",
}  # fmt: skip
"""Types of MySQL's protocol, as its catalogue spells them."""


def mysql_type(field: Any) -> str:
    """Return the type of a column of a result, as MySQL's catalogue spells it.

    Members of ENUM and SET are not told, so rows are not read in their order.
    """
    number, flags = field.type_code, field.flags
    unsigned = " unsigned" if flags & _UNSIGNED else ""
    if flags & (_ENUM | _SET):
        return "enum" if flags & _ENUM else "set"
    if number in _MYSQL_NUMBERS:
        length = "(1)" if number == 1 and field.length == 1 else ""
        return f"{_MYSQL_NUMBERS[number]}{length}{unsigned}"
    if number in {0, 246}:
        signs = (1 if field.scale else 0) + (0 if unsigned else 1)
        return f"decimal({field.length - signs},{field.scale}){unsigned}"
    if number == 16:  # noqa: PLR2004 - of the protocol
        return f"bit({field.length})"
    if number in _PROTOCOL_TYPES:
        return _PROTOCOL_TYPES[number]
    return "varbinary" if field.charsetnr == _BINARY else "varchar"


def made(settings: MySqlSettings, storage: Storage, hosts: tuple[str, ...]) -> SqlConnector:
    return SqlConnector(MySqlSource(settings, hosts), settings, storage)


# --- actions --------------------------------------------------------------------------------------


class MySqlActionSettings(SqlActionSettings):
    """A MySQL 8 or MariaDB 10.6 database, or newer."""

    port: int = Field(3306, ge=1, le=65535)


def _mysql(settings: Any, outside: Outside) -> SqlStatements:
    limits = f"SET SESSION innodb_lock_wait_timeout = {WAIT_S_MAX}"
    source = MySqlSource(settings, outside.databases, answer_s=STATEMENT_S_MAX)
    return SqlStatements(settings, source.dialect, "database()", limits)


MYSQL: Final = HandlerType("mysql", "Statements in MySQL or MariaDB", MySqlActionSettings, _mysql)
