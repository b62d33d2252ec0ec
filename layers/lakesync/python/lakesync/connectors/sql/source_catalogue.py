"""The readable tables and queries of a database, with their columns and keys.

`Database` covers all differences between PostgreSQL and MySQL as sources.

Asks the database what a query is that is read in a table's place: its columns, or its fault. The
database itself says whether the text is one statement, by preparing it without anything around it,
and whether it can be read as a table. Nothing is run but that, in a session that cannot write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.adapters.network import context_of
from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.connectors.sql.database_values import (
    POSTGRES_SETTINGS,
    MySqlValues,
    PostgresValues,
    resolved,
)
from lakesync.connectors.sql.sql_settings import bare_table, derived_table, place_of, written
from lakesync.errors import AdapterRefused, AdapterTimedOut, AdapterUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.standard import Connection, Dialect
    from lakesync.connectors.sql.database_values import Values
    from lakesync.connectors.sql.sql_settings import MySqlSettings, PostgresSettings

# --- tables ---------------------------------------------------------------------------------------


READ_S_MAX: Final = 15
"""How long the source may take for one page; a poll's function ends after 29 s."""
ANSWER_S_MAX: Final = 17
"""How long to wait for an answer of the source: a little longer than it may take for one."""
_POSTGRES_COLUMNS: Final = f"""
    SELECT c.relname, a.attname, {resolved("a.atttypid", "a.atttypmod")}, a.attnotnull,
           coalesce(array_position(i.indkey::int2[], a.attnum), -1)
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
    WHERE {{}} ORDER BY c.relname, a.attnum"""  # noqa: S608 - our own SQL
_POSTGRES_ALL: Final = (
    "c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition "
    "AND c.relnamespace = current_schema()::regnamespace"
)
_MYSQL_COLUMNS: Final = """
    SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE = 'NO',
           coalesce(s.SEQ_IN_INDEX, 0) - 1
    FROM information_schema.COLUMNS c
    LEFT JOIN information_schema.STATISTICS s ON s.TABLE_SCHEMA = c.TABLE_SCHEMA
         AND s.TABLE_NAME = c.TABLE_NAME AND s.COLUMN_NAME = c.COLUMN_NAME
         AND s.INDEX_NAME = 'PRIMARY'
    WHERE {} ORDER BY c.TABLE_NAME, c.ORDINAL_POSITION"""


class Database(Protocol):
    """One database as a source."""

    @property
    def title(self) -> str:
        """Its name for people."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Its dialect: connecting, quoting of names, translation of errors."""
        ...

    @property
    def values(self) -> Values:
        """How its values are read."""
        ...

    @property
    def zoneless(self) -> int:
        """The driver's type of a column of times without a zone."""
        ...

    def connect(self) -> Connection:
        """Connect read-only, with short time limits."""
        ...

    def now(self, cursor: Any) -> Any:
        """Return the time by the source's clock."""
        ...

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        """Return all tables, or the one of a name; none if there is no such table."""
        ...

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        """Return the columns of a query that is read in the place of a table.

        Raises:
            AdapterRefused: it is not one SELECT, or has two columns of one name.
        """
        ...


@dataclass(frozen=True)
class PostgresSource:
    """PostgreSQL."""

    settings: PostgresSettings
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.network`."""
    answer_s: float = ANSWER_S_MAX
    title: str = "PostgreSQL"
    values: Values = field(default_factory=PostgresValues, repr=False)
    zoneless: int = 1114  # timestamp

    @cached_property
    def dialect(self) -> Dialect:
        """Return the dialect of the adapter."""
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - the driver

        from lakesync.adapters.postgres import Postgres  # noqa: PLC0415

        settings = self.settings
        return Postgres(
            make_conninfo(
                host=settings.host, port=settings.port, dbname=settings.database,
                user=settings.user, password=settings.password.get_secret_value(),
            ),
            self.hosts, settings.tls, answer_s=self.answer_s,
        )  # fmt: skip

    def connect(self) -> Connection:
        """Connect."""
        connection = self.dialect.connect()
        cursor = connection.cursor()
        cursor.execute("SET default_transaction_read_only = on")
        cursor.execute(f"SET statement_timeout = {READ_S_MAX * 1000}")
        for name, value in POSTGRES_SETTINGS.items():
            cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()
        return connection

    def now(self, cursor: Any) -> Any:
        """Return the time."""
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        """Read the catalogue."""
        if table is None:
            cursor.execute(_POSTGRES_COLUMNS.format(_POSTGRES_ALL))
        else:
            name = bare_table(self.dialect, table)
            cursor.execute(_POSTGRES_COLUMNS.format("c.oid = to_regclass(%s)"), (name,))
        return _tables(cursor.fetchall(), table, self.values)

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        """Ask the server."""
        return postgres_columns(cursor, self.dialect, self.values, name, query)


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
        """Return the dialect of the adapter."""
        from lakesync.adapters.mysql import MySql  # noqa: PLC0415 - its driver

        settings = self.settings
        return MySql(
            settings.host, settings.user, settings.password.get_secret_value(), settings.database,
            settings.port, tls=context_of(settings.tls), hosts=self.hosts,
            answer_s=self.answer_s,
        )  # fmt: skip

    def connect(self) -> Connection:
        """Connect."""
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
        """Return the time."""
        cursor.execute("SELECT UTC_TIMESTAMP(6)")
        return cursor.fetchone()[0]

    def described(self, cursor: Any, table: str | None) -> Sequence[SourceTable]:
        """Read the catalogue."""
        if table is None:
            cursor.execute(_MYSQL_COLUMNS.format("c.TABLE_SCHEMA = DATABASE()"))
        else:
            schema, name = place_of(table)
            condition = "c.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND c.TABLE_NAME = %s"
            cursor.execute(_MYSQL_COLUMNS.format(condition), (schema or None, name))
        return _tables(cursor.fetchall(), table, self.values)

    def queried(self, cursor: Any, name: str, query: str) -> tuple[SourceColumn, ...]:
        """Ask the server."""
        return mysql_columns(cursor, self.dialect, self.values, name, query)


def _tables(rows: Sequence[Sequence[Any]], asked: str | None, values: Values) -> list[SourceTable]:
    columns: dict[str, list[SourceColumn]] = {}
    keys: dict[str, dict[int, str]] = {}
    for table, name, sql_type, is_required, place in rows:
        column = SourceColumn(name, values.column_type(sql_type), not is_required, sql_type)
        columns.setdefault(asked or written(table), []).append(column)
        if place >= 0:
            keys.setdefault(asked or written(table), {})[place] = name
    return [
        SourceTable(name, tuple(part), tuple(key for _, key in sorted(keys.get(name, {}).items())))
        for name, part in columns.items()
    ]


# --- queries --------------------------------------------------------------------------------------


_TYPE_NAMES: Final = f"""
    SELECT {resolved("x.type_id", "x.modifier")}
    FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS x(type_id, modifier, place)
    ORDER BY x.place"""  # noqa: S608 - our own SQL
_BINARY: Final = 63
"""MySQL's number of the character set of bytes."""
_UNSIGNED: Final = 32
_ENUM: Final = 256
_SET: Final = 2048
_MYSQL_NUMBERS: Final = {1: "tinyint", 2: "smallint", 3: "int", 8: "bigint", 9: "mediumint"}
_MYSQL_TYPES: Final = {
    4: "float", 5: "double", 7: "timestamp", 10: "date", 11: "time", 12: "datetime", 13: "year",
    14: "date", 245: "json", 255: "geometry",
}  # fmt: skip
"""Types of MySQL's protocol, as its catalogue spells them."""


def refused_query(name: str, message: str) -> AdapterRefused:
    """Return the error of a query that cannot be read."""
    said = " ".join(message.split())[:300]
    return AdapterRefused(
        f"the query of {name} is not one SELECT that can be read as a table: {said}"
    )


def check_names(name: str, columns: Sequence[str]) -> None:
    """Refuse a query with two columns of one name.

    Raises:
        AdapterRefused: there are two.
    """
    folded = [column.lower() for column in columns]
    twice = sorted({column for column in folded if folded.count(column) > 1})
    if twice:
        raise AdapterRefused(
            f"the query of {name} has several columns called {', '.join(twice)}: give each a name "
            "of its own with AS"
        )


def postgres_columns(
    cursor: Any, dialect: Dialect, values: Values, name: str, query: str
) -> tuple[SourceColumn, ...]:
    """Return the columns of a query of PostgreSQL.

    Raises:
        AdapterRefused: it is not one SELECT, or has two columns of one name.
    """
    from psycopg.errors import error_from_result  # noqa: PLC0415 - the driver
    from psycopg.pq import ExecStatus  # noqa: PLC0415

    connection = cursor.connection
    prepared = connection.pgconn.prepare(b"", query.encode(connection.info.encoding))
    if prepared.status != ExecStatus.COMMAND_OK:
        raise _translated(dialect, error_from_result(prepared), name)
    described = connection.pgconn.describe_prepared(b"")
    if described.nparams:
        raise refused_query(name, "it has parameters, which have no values")
    _read(cursor, dialect, name, query, 0)
    result = cursor.pgresult
    places = range(result.nfields)
    names = [result.fname(place).decode() for place in places]
    check_names(name, names)
    kinds = [[result.ftype(place) for place in places], [result.fmod(place) for place in places]]
    cursor.execute(_TYPE_NAMES, kinds)
    types = [row[0] for row in cursor.fetchall()]
    return tuple(
        SourceColumn(column, values.column_type(kind), source_type=kind)
        for column, kind in zip(names, types, strict=True)
    )


def mysql_columns(
    cursor: Any, dialect: Dialect, values: Values, name: str, query: str
) -> tuple[SourceColumn, ...]:
    """Return the columns of a query of MySQL or MariaDB.

    Raises:
        AdapterRefused: it is not one SELECT, or has two columns of one name.
    """
    try:
        cursor.execute("PREPARE lakesync_query FROM %s", (query,))
        cursor.execute("DEALLOCATE PREPARE lakesync_query")
    except Exception as exc:
        raise _translated(dialect, exc, name) from exc
    _read(cursor, dialect, name, query, 0)
    fields = cursor._result.fields  # noqa: SLF001 - the driver shows flags nowhere else
    check_names(name, [field.name for field in fields])
    kinds = [mysql_type(field) for field in fields]
    return tuple(
        SourceColumn(field.name, values.column_type(kind), source_type=kind)
        for field, kind in zip(fields, kinds, strict=True)
    )


def check_reads(cursor: Any, dialect: Dialect, name: str, query: str) -> None:
    """Read one row of a query: a function that writes is refused as the session is read-only.

    Raises:
        AdapterRefused: it cannot be read.
    """
    _read(cursor, dialect, name, query, 1)
    cursor.fetchall()


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
    if number in _MYSQL_TYPES:
        return _MYSQL_TYPES[number]
    return "varbinary" if field.charsetnr == _BINARY else "varchar"


def _read(cursor: Any, dialect: Dialect, name: str, query: str, rows_max: int) -> None:
    """Read the query as a table, as the polls' statements do."""
    try:
        cursor.execute(f"SELECT * FROM {derived_table(query)} LIMIT {rows_max:d}", ())  # noqa: S608 - checked
    except Exception as exc:
        raise _translated(dialect, exc, name) from exc


def _translated(dialect: Dialect, error: Exception, name: str) -> Exception:
    """Return the refusal of a query; other errors, as of a lost connection, as they are."""
    translated = dialect.translate(error)
    if translated is None or type(translated) in {AdapterUnreachable, AdapterTimedOut}:
        return translated or error
    return refused_query(name, str(error.args[-1] if error.args else error))
