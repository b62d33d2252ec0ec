"""The readable tables of a database, with their columns and keys.

`Database` covers all differences between PostgreSQL and MySQL as sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.adapters.tls import context_of
from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.connectors.sql.mysql_values import MySqlValues
from lakesync.connectors.sql.names import bare_table, place_of, written
from lakesync.connectors.sql.postgres_values import SETTINGS, PostgresValues, resolved
from lakesync.connectors.sql.queried import mysql_columns, postgres_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.sql.dialect import Connection, Dialect
    from lakesync.connectors.sql.configuration import MySqlSettings, PostgresSettings
    from lakesync.connectors.sql.values import Values

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
    """Which hosts that are not public it may be at; see `lakesync.adapters.hosts`."""
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
        for name, value in SETTINGS.items():
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
    """Which hosts that are not public it may be at; see `lakesync.adapters.hosts`."""
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
