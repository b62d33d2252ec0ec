"""The app's tables: which exist, under which SQLite names, with which columns.

A table and its columns appear when they are first seen, in the transaction that needs them. The
wire tells ``Title`` from ``title`` and knows no reserved names; SQLite folds the one and has the
other. A name that is free and safe stays as it is; any other gets a short digest of itself, and
`Catalogue.sql_name` tells which.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.cells import cell
from lakesync.client.storage.decimals import COLLATION
from lakesync.client.storage.tables import PREFIX
from lakesync.core.delta import check_identifier
from lakesync.core.values import NULL
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lakesync.client.storage.cells import Cell
    from lakesync.core.merge import RowState

_BOOLEANS: Final = frozenset({b"true", b"false"})
ROW_ID: Final = "_row_id"
"""The column of every app table that holds the row's id."""
DECIMAL: Final = "DECIMAL_TEXT"
"""The SQL type of decimals. They stay digits, as REAL would round them."""
APP_COLUMNS_MAX: Final = 1_900
"""Columns of one app table; SQLite ends at 2,000. What comes later is kept and synced, and can be
read with ``get``, but has no column to query."""


@dataclass(slots=True)
class AppTable:
    """One table of the app, and the statements that keep it."""

    id: int
    name: str
    sql_name: str
    columns: dict[str, str | None] = field(default_factory=dict)
    """SQLite's name of each column, in the order of first sight; None where there is no room."""
    shown: tuple[str, ...] = ()
    """The columns that the app's table has, in the order in which ``upsert`` takes them."""
    upsert: str = ""
    delete: str = ""
    booleans: dict[str, bool | None] = field(default_factory=dict)
    """Columns that hold nothing but booleans, or, where it is None, nothing but nulls so far."""
    kinds: dict[str, bool] = field(default_factory=dict)
    """Of which of these that is decided anew, and is yet to be stored."""

    def prepare(self) -> None:
        """Compose the statements for the columns as they are now."""
        self.shown = tuple(name for name, sql_name in self.columns.items() if sql_name)
        quoted = [quote(sql_name) for sql_name in self.columns.values() if sql_name]
        table, key = quote(self.sql_name), quote(ROW_ID)
        changes = ", ".join(f"{name} = excluded.{name}" for name in quoted)
        self.upsert = (
            f"INSERT INTO {table} ({', '.join([key, *quoted])}) "  # noqa: S608 - quoted names
            f"VALUES ({', '.join('?' * (1 + len(quoted)))}) ON CONFLICT ({key}) DO "
            + (f"UPDATE SET {changes}" if changes else "NOTHING")
        )
        self.delete = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608 - quoted names

    def cells(self, row_id: str, state: RowState) -> list[Cell] | None:
        """Give the parameters of ``upsert``, or None if there is no row.

        A column that the row does not have is NULL.
        """
        columns = state.columns
        if not columns and not state.alive:
            return None
        for name, is_boolean in self.booleans.items():
            value = columns[name][2] if name in columns else NULL
            if value != NULL and (value in _BOOLEANS) is not is_boolean:
                self.kinds[name] = value in _BOOLEANS and is_boolean is None
        cells: list[Cell] = [row_id]
        cells += [cell(columns[name][2]) if name in columns else None for name in self.shown]
        return cells


class Catalogue:
    """The app's tables by their wire names. Used by whoever holds the database's lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._tables: dict[str, AppTable] = {}
        self._by_id: dict[int, AppTable] = {}

    def reload(self) -> None:
        """Read the catalogue out of the database."""
        self._tables.clear()
        self._by_id.clear()
        for table_id, name, sql_name in self._connection.execute(
            "SELECT id, name, sql_name FROM _lakesync_tables"
        ).fetchall():
            self._remember(AppTable(table_id, name, sql_name))
        for table_id, name, sql_name, is_boolean in self._connection.execute(
            "SELECT table_id, name, sql_name, is_boolean FROM _lakesync_columns "
            "ORDER BY table_id, place"
        ).fetchall():
            self._by_id[table_id].columns[name] = sql_name
            if is_boolean != 0:
                self._by_id[table_id].booleans[name] = is_boolean and True
        for table in self._tables.values():
            table.prepare()

    def find(self, name: str) -> AppTable | None:
        """Give a table that was seen before, or None."""
        return self._tables.get(name)

    def by_id(self, table_id: int) -> AppTable:
        """Give the table that a row or an outbox entry names."""
        return self._by_id[table_id]

    def table(self, name: str, columns: Iterable[str]) -> AppTable:
        """Give a table, made and widened as needed, within the caller's transaction.

        Raises:
            ValidationFailed: a name is malformed.
        """
        known_table = self._tables.get(name)
        if known_table is None:
            return self._create(name, dict.fromkeys(columns, ""))
        known = known_table.columns
        missing = [column for column in columns if column not in known]
        if missing:
            self.widen(known_table, dict.fromkeys(missing, ""))
        return known_table

    def widen(self, table: AppTable, columns: Mapping[str, str]) -> None:
        """Add columns, each with its SQL type; an empty type stores values as they are.

        Raises:
            ValidationFailed: a name is malformed.
        """
        for sql_name, sql_type in self._add(table, columns):
            self._connection.execute(
                f"ALTER TABLE {quote(table.sql_name)} ADD COLUMN {_column(sql_name, sql_type)}"
            )

    def keep_kinds(self, table: AppTable) -> None:
        """Store what was decided of a table's columns when its rows were composed."""
        for name, is_boolean in table.kinds.items():
            self._connection.execute(
                "UPDATE _lakesync_columns SET is_boolean = ? WHERE table_id = ? AND name = ?",
                (is_boolean, table.id, name),
            )
            if is_boolean:
                table.booleans[name] = True
            else:
                del table.booleans[name]
        table.kinds.clear()

    def _create(self, name: str, columns: Mapping[str, str]) -> AppTable:
        check_identifier(name, "table")
        sql_name = _free_name(name, self._names_in_use())
        table_id = self._connection.execute(
            "INSERT INTO _lakesync_tables (name, sql_name) VALUES (?, ?) RETURNING id",
            (name, sql_name),
        ).fetchone()[0]
        table = AppTable(table_id, name, sql_name)
        self._connection.execute(table_sql(sql_name, self._add(table, columns)))
        self._remember(table)
        return table

    def _add(self, table: AppTable, columns: Mapping[str, str]) -> list[tuple[str, str]]:
        """Record new columns; gives the names and types of those that the app's table gets."""
        taken = {ROW_ID, *(used.lower() for used in table.columns.values() if used)}
        added: list[tuple[str, str]] = []
        for name, sql_type in columns.items():
            check_identifier(name, "columns.column")
            sql_name = None
            if len(taken) <= APP_COLUMNS_MAX:
                sql_name = _free_name(name, taken)
                taken.add(sql_name.lower())
                added.append((sql_name, sql_type))
            self._connection.execute(
                "INSERT INTO _lakesync_columns (table_id, place, name, sql_name) "
                "VALUES (?, ?, ?, ?)",
                (table.id, len(table.columns), name, sql_name),
            )
            table.columns[name] = sql_name
            table.booleans[name] = None
        table.prepare()
        return added

    def _names_in_use(self) -> set[str]:
        # Whatever else the app keeps in the file (tables, views, indexes) has its name already.
        rows: Sequence[tuple[str]] = self._connection.execute(
            "SELECT lower(name) FROM sqlite_master"
        ).fetchall()
        return {name for (name,) in rows}

    def _remember(self, table: AppTable) -> None:
        self._tables[table.name] = table
        self._by_id[table.id] = table


def table_sql(sql_name: str, columns: Iterable[tuple[str, str]]) -> str:
    """Give the statement that makes an app's table of columns with their types."""
    parts = [f"{quote(ROW_ID)} TEXT PRIMARY KEY NOT NULL"]
    parts += [_column(name, sql_type) for name, sql_type in columns]
    return f"CREATE TABLE {quote(sql_name)} ({', '.join(parts)}) WITHOUT ROWID"


def checked_text(value: object, field: str) -> str:
    """Give a value back if it is text; else a ``VALIDATION_ERROR`` is raised."""
    if not isinstance(value, str):
        raise ValidationFailed(f"{field} must be text, not {type(value).__name__}", field=field)
    return value


def checked_name(name: object, field: str) -> str:
    """Give a table's or a column's name back if it is one; else as `checked_text`."""
    return check_identifier(checked_text(name, field), field)


def _column(sql_name: str, sql_type: str) -> str:
    collation = f" COLLATE {COLLATION}" if sql_type == DECIMAL else ""
    return f"{quote(sql_name)} {sql_type}{collation}"


def quote(identifier: str) -> str:
    """Give an identifier as SQL text that can be nothing else."""
    doubled = identifier.replace('"', '""')
    return f'"{doubled}"'


def _free_name(name: str, taken: Collection[str]) -> str:
    folded = name.lower()
    reserved = folded.startswith(("sqlite_", PREFIX))
    if not reserved and folded not in taken:
        return name
    plain = f"t_{name}" if reserved else name
    attempt = name
    while True:
        digest = hashlib.sha256(attempt.encode()).hexdigest()[:10]
        candidate = f"{plain}_{digest}"
        if candidate.lower() not in taken:
            return candidate
        attempt += "+"
