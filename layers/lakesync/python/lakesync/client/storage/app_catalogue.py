"""The app's tables: which exist, under which SQLite names, with which columns of which types.

A table or column is created when it is first seen, in the transaction that needs it. Names that
differ only in case are one name: the first spelling is used until the gateway sends another; then
waiting edits are sent under that. A name that SQLite reserves, or that the app already uses, gets a
short digest appended, and `Client.sql_name` returns the result.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_table import (
    ROW_ID,
    AppObjects,
    AppTable,
    column_sql,
    free_name,
    keep_forms,
    quote,
    table_sql,
)  # fmt: skip
from lakesync.client.storage.misuse import checked_text
from lakesync.client.storage.outbox import Status
from lakesync.core.delta import known_delta
from lakesync.core.names import check_identifier, first_spellings, folded, name_taken
from lakesync.core.schema import schemas_from_json
from lakesync.errors import NameTaken, TableNotDeclared
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# --- another spelling -----------------------------------------------------------------------------


_REFUSED = f"table_id = ? AND status = '{Status.QUARANTINED}' AND code = '{NameTaken.code}'"


def was_refused(connection: sqlite3.Connection, table: AppTable) -> bool:
    """Get whether the gateway has refused a name of this table, which is then not its spelling."""
    sql = f"SELECT 1 FROM _lakesync_outbox WHERE {_REFUSED} LIMIT 1"  # noqa: S608 - our own words
    return connection.execute(sql, (table.id,)).fetchone() is not None


def respell_table(connection: sqlite3.Connection, table: AppTable, name: str) -> None:
    """Give a table another spelling. Its SQLite name stays: SQLite reads either as the same."""
    connection.execute("UPDATE _lakesync_tables SET name = ? WHERE id = ?", (name, table.id))
    table.name = name
    table.prepare()
    _respell_edits(connection, table, {})


def respell_column(connection: sqlite3.Connection, table: AppTable, old: str, new: str) -> None:
    """Give a column another spelling, which the rows of a query have too."""
    sql_name = table.columns[old]
    if sql_name == old and _renamed(connection, table, old, new):
        sql_name = new
    connection.execute(
        "UPDATE _lakesync_columns SET name = ?, sql_name = ? WHERE table_id = ? AND name = ?",
        (new, sql_name, table.id, old),
    )
    spelled = {old: new}
    table.columns = _with_names(table.columns, spelled) | {new: sql_name}
    table.forms = _with_names(table.forms, spelled)
    table.declared = _with_names(table.declared, spelled)
    table.prepare()
    _respell_edits(connection, table, spelled)


def _renamed(connection: sqlite3.Connection, table: AppTable, old: str, new: str) -> bool:
    # SQLite refuses if some view of the app is broken: then the old spelling stays, and the same
    # SQL reads the same column.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute(
            f"ALTER TABLE {quote(table.sql_name)} RENAME COLUMN {quote(old)} TO {quote(new)}"
        )
        return True
    if not connection.in_transaction:
        raise sqlite3.OperationalError("the disk failed, and nothing was written")
    return False


def _respell_edits(
    connection: sqlite3.Connection, table: AppTable, spelled: dict[str, str]
) -> None:
    """Rename the waiting edits; those refused for their spelling may be pushed again."""
    edits = "SELECT hlc, run FROM _lakesync_outbox WHERE table_id = ?"
    changed = []
    for hlc, run in connection.execute(edits, (table.id,)):
        (old,) = decode_records(run)
        columns = tuple(sorted((spelled.get(name, name), value) for name, value in old.columns))
        delta = known_delta(old.op, table.name, old.row_id, old.client_id, hlc, columns)
        changed.append((encode_records((delta,)), hlc))
    connection.executemany("UPDATE _lakesync_outbox SET run = ? WHERE hlc = ?", changed)
    connection.execute(
        "UPDATE _lakesync_outbox SET status = ?, code = NULL, message = NULL, "
        "field = NULL WHERE table_id = ? AND status = ? AND code IN (?, ?)",
        # Rules may name the table in this spelling, and in no other.
        (Status.PENDING, table.id, Status.QUARANTINED, NameTaken.code, TableNotDeclared.code),
    )


def _with_names(values: Mapping[str, Any], spelled: dict[str, str]) -> dict[str, Any]:
    return {spelled.get(name, name): value for name, value in values.items()}


# --- the catalogue --------------------------------------------------------------------------------


APP_COLUMNS_MAX: Final = 1_900
"""Columns of one app table; SQLite allows 2,000. Later ones are stored and synced, and can be read
with ``get``, but have no column to query.
"""
_SCHEMAS_REMEMBERED: Final = 16


class Catalogue:
    """The app's tables by their wire names. Used only while holding the database's lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._tables: dict[str, AppTable] = {}  # by folded names
        self.objects = AppObjects(connection, self._tables)
        self._by_id: dict[int, AppTable] = {}
        self._changed: dict[int, AppTable] = {}
        self._local_changed: set[str] = set()
        self._delete_wins: frozenset[str] = frozenset()  # folded names

    def note_change(self, table: AppTable) -> None:
        self._changed[table.id] = table

    def is_pulled(self, sql_name: str) -> bool:
        """Return whether a table is one that was pulled from a source."""
        of_source = "SELECT 1 FROM _lakesync_source_tables WHERE source || '.' || name = ?"
        row = self._connection.execute(f"{of_source} COLLATE NOCASE", (sql_name,)).fetchone()
        return row is not None

    def note_local_change(self, sql_name: str) -> None:
        self._local_changed.add(sql_name)

    def take_changed(self) -> list[tuple[str, str]]:
        """Get the names, and SQLite's names, of the tables changed by a committed transaction."""
        changed = [(table.name, table.sql_name) for table in self._changed.values()]
        changed += [(name, name) for name in self._local_changed]
        self.forget_changed()
        return changed

    def forget_changed(self) -> None:
        self._changed.clear()
        self._local_changed.clear()

    def reload(self) -> None:
        self._tables.clear()
        self._by_id.clear()
        self._changed.clear()
        self._local_changed.clear()
        self.read_schemas()
        tables = self._connection.execute("SELECT id, name, sql_name FROM _lakesync_tables")
        for row in tables.fetchall():
            self._remember(AppTable(*row))
        columns = self._connection.execute(
            "SELECT table_id, name, sql_name, forms, declared FROM _lakesync_columns "
            "ORDER BY table_id, place"
        )
        for table_id, name, sql_name, forms, declared in columns.fetchall():
            self._by_id[table_id].columns[name] = sql_name
            self._by_id[table_id].forms[name] = forms or 0
            if declared:
                self._by_id[table_id].declared[name] = declared.replace(" ", "")
        for table in self._tables.values():
            table.prepare()
        self.objects.look()

    def read_schemas(self) -> list[AppTable]:
        """Learn from the stored schemas how tables are read; returns those now read otherwise."""
        ((text,),) = self._connection.execute("SELECT schemas FROM _lakesync_sync").fetchall()
        self._delete_wins = delete_wins_in(text)
        changed = [
            table
            for name, table in self._tables.items()
            if table.delete_wins is not (name in self._delete_wins)
        ]
        for table in changed:
            table.delete_wins = not table.delete_wins
        return changed

    def known(self, name: str) -> AppTable:
        """Return a table that is there, by any spelling of its name."""
        return self._tables[folded(name)]

    def spelled(self, name: str) -> AppTable | None:
        """Return a table that is there by exactly this name."""
        table = self._tables.get(name) or self._tables.get(folded(name))
        return table if table is not None and table.name == name else None

    def by_id(self, table_id: int) -> AppTable:
        return self._by_id[table_id]

    def by_sql_name(self, sql_name: str) -> AppTable | None:
        """Return the table with a name in any spelling; None if there is none."""
        small = sql_name.lower()
        tables = self._tables.values()
        return next((table for table in tables if table.sql_name.lower() == small), None)

    def keep_declared(self, table: AppTable, types: Mapping[str, str]) -> None:
        table.declared |= types
        table.prepare()  # values are written by their types
        self._connection.executemany(
            "UPDATE _lakesync_columns SET declared = ? WHERE table_id = ? AND name = ?",
            [(type_name, table.id, name) for name, type_name in types.items()],
        )

    def table(self, name: str, columns: Iterable[str], *, received: bool = False) -> AppTable:
        """Return a table, made and widened as needed, within the caller's transaction.

        ``received`` names are the gateway's, whose spelling is used. For any other name, an
        existing one in another spelling raises `NameTaken`, and a malformed one `ValidationFailed`.
        """
        table = self._tables.get(folded(name))
        if table is None:
            return self._create(name, dict.fromkeys(columns, ""), received=received)
        if not received:
            table.check()
        if table.name != name:
            self.note_change(table)
            self._may_respell(table, name, table.name, "table", received=received)
            respell_table(self._connection, table, name)
        missing = [column for column in columns if column not in table.columns]
        if missing:
            self.widen(table, dict.fromkeys(missing, ""), received=received)
        return table

    def widen(self, table: AppTable, columns: Mapping[str, str], *, received: bool = False) -> None:
        """Add columns, each with its SQL type; an empty type stores values unchanged."""
        self.note_change(table)
        for sql_name, sql_type in self._add(table, columns, received=received):
            self._connection.execute(
                f"ALTER TABLE {quote(table.sql_name)} ADD COLUMN {column_sql(sql_name, sql_type)}"
            )
        self.objects.look()

    def _may_respell(
        self, table: AppTable, name: str, first: str, of: str, *, received: bool
    ) -> None:
        # An app that follows the gateway's refusal uses the other spelling from then on.
        if not received and not was_refused(self._connection, table):
            raise name_taken(name, first, of)

    def _create(self, name: str, columns: Mapping[str, str], *, received: bool) -> AppTable:
        check_identifier(name, "table")
        sql_name = self.objects.free_name(name, received=received)
        table_id = self._connection.execute(
            "INSERT INTO _lakesync_tables (name, sql_name) VALUES (?, ?) RETURNING id",
            (name, sql_name),
        ).fetchone()[0]
        table = AppTable(table_id, name, sql_name)
        self._connection.execute(table_sql(sql_name, self._add(table, columns, received=received)))
        self._remember(table)
        self.note_change(table)
        self.objects.look()
        return table

    def _add(
        self, table: AppTable, columns: Mapping[str, str], *, received: bool
    ) -> list[tuple[str, str]]:
        """Record new columns; returns the names and types of those added to the app's table."""
        taken = {ROW_ID, *(used.lower() for used in table.columns.values() if used)}
        added: list[tuple[str, str]] = []
        spellings = first_spellings(table.columns)
        for name, sql_type in columns.items():
            check_identifier(name, "columns.column")
            first = spellings.setdefault(folded(name), name)
            if first != name:
                self._may_respell(table, name, first, "column", received=received)
                respell_column(self._connection, table, first, name)
                continue
            sql_name = None
            if len(taken) <= APP_COLUMNS_MAX:
                sql_name = free_name(name, taken)
                taken.add(sql_name.lower())
                added.append((sql_name, sql_type))
            self._connection.execute(
                "INSERT INTO _lakesync_columns VALUES (?, ?, ?, ?, 0, NULL)",
                (table.id, len(table.columns), name, sql_name),
            )
            table.columns[name] = sql_name
            table.forms[name] = 0
        table.prepare()
        return added

    def _remember(self, table: AppTable) -> None:
        table.delete_wins = folded(table.name) in self._delete_wins
        table.keep_forms = partial(keep_forms, self._connection)
        self._tables[folded(table.name)] = table
        self._by_id[table.id] = table


@lru_cache(_SCHEMAS_REMEMBERED)
def delete_wins_in(schemas: str) -> frozenset[str]:
    """Return the tables of stored schemas that are delete-wins tables, by their folded names."""
    tables = schemas_from_json(json.loads(schemas)).tables if "deleteWins" in schemas else ()
    return frozenset(folded(one.table) for one in tables if one.delete_wins)


def checked_name(name: object, field: str) -> str:
    """Return a table's or a column's name unchanged if it is valid; otherwise as `checked_text`."""
    return check_identifier(checked_text(name, field), field)
