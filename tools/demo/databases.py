"""The databases of the second act: an airline's PostgreSQL, and a MySQL for reports."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import psycopg
import pymysql
from psycopg import sql

from tools.demo.evidence import as_json
from tools.demo.flights import TABLE, TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.demo.flights import Row, Rows
    from tools.local_stack.databases import Database

KEY: Final = "id"
SOURCE_TYPES: Final = {
    "string": "text", "integer": "integer", "date": "date", "timestamp": "timestamptz",
}  # fmt: skip
REMARK: Final = "remark"
"""The one column of the flights that PostgreSQL does not have: only clients write it."""
SOURCE_COLUMNS: Final = tuple(name for name in TYPES if name != REMARK)
CAPTURED_SCHEMA: Final = {
    "table": TABLE,
    "columns": [{"name": name, "type": kind} for name, kind in {KEY: "string", **TYPES}.items()],
}
"""The schema of the captured table: its key is a column too."""


@dataclass(frozen=True)
class Operations:
    """The airline's own database, which knows nothing of LakeSync."""

    database: Database

    def publish(self, timetable: Rows) -> None:
        """Make the table of flights, and fill it."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(SOURCE_TYPES[TYPES[name]]))
            for name in SOURCE_COLUMNS
        ]
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute(
                sql.SQL("CREATE TABLE {} ({} text PRIMARY KEY, {})").format(
                    sql.Identifier(TABLE), sql.Identifier(KEY), sql.SQL(", ").join(columns)
                )
            )
            copy = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(TABLE))
            with cursor.copy(copy) as rows:
                for row_id, row in timetable.items():
                    rows.write_row((row_id, *(row.get(name) for name in SOURCE_COLUMNS)))

    def book(self, departures: Rows, cancelled: list[str]) -> None:
        """Write departures and remove what never left, in one transaction."""
        with self._connected() as connection, connection.cursor() as cursor:
            for row_id, row in departures.items():
                written = {name: value for name, value in row.items() if name != REMARK}
                cursor.execute(
                    sql.SQL("UPDATE {} SET {} WHERE {} = %s").format(
                        sql.Identifier(TABLE), _assignments(written), sql.Identifier(KEY)
                    ),
                    (*written.values(), row_id),
                )
            cursor.execute(
                sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
                    sql.Identifier(TABLE), sql.Identifier(KEY)
                ),
                (cancelled,),
            )

    def rows(self) -> Rows:
        """Return its rows, as JSON has them."""
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute(
                sql.SQL("SELECT {}, {} FROM {}").format(
                    sql.Identifier(KEY), sql.SQL(", ").join(map(sql.Identifier, SOURCE_COLUMNS)),
                    sql.Identifier(TABLE),
                )
            )  # fmt: skip
            return {row_id: _row(values) for row_id, *values in cursor}

    def connector(self) -> dict[str, Any]:
        """Return the settings of the connector that captures its changes."""
        return {
            "host": self.database.host, "port": self.database.port,
            "database": self.database.database, "user": self.database.user,
            "password": self.database.password, "tls": "off", "changes": True,
            "tables": [{"name": TABLE}],
        }  # fmt: skip

    def _connected(self) -> psycopg.Connection:
        return psycopg.connect(
            host=self.database.host, port=self.database.port, dbname=self.database.database,
            user=self.database.user, password=self.database.password,
        )  # fmt: skip


@dataclass(frozen=True)
class Reports:
    """A MySQL that LakeSync fills."""

    database: Database

    @property
    def url(self) -> str:
        """Its URL, which a secret holds."""
        database = self.database
        return (
            f"mariadb://{quote(database.user)}:{quote(database.password)}@{database.host}:"
            f"{database.port}/{database.database}"
        )

    def rows(self) -> Rows:
        """Return its rows, as JSON has them; none before there is a table."""
        names = ", ".join(f"`{name}`" for name in TYPES)
        database = self.database
        with (
            closing(
                pymysql.connect(
                    host=database.host, port=database.port, user=database.user,
                    password=database.password, database=database.database,
                )
            ) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            try:
                cursor.execute(f"SELECT `row_id`, {names} FROM `{TABLE}`")  # noqa: S608 - constants
            except pymysql.err.ProgrammingError:
                return {}
            return {
                row_id: as_json(dict(zip(TYPES, map(_in_utc, values), strict=True)))
                for row_id, *values in cursor.fetchall()
            }


def _assignments(row: Mapping[str, Any]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in row)


def _row(values: list[Any]) -> Row:
    return as_json(dict(zip(SOURCE_COLUMNS, values, strict=True)))


def _in_utc(value: Any) -> Any:
    """MySQL's times have no zone; LakeSync writes them in UTC."""
    is_naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if is_naive else value
