"""Local tables, which never leave the device: the app's own, and those that pulls of sources fill.

An app creates and writes its own by `execute`, in one transaction with its edits, and its views.
Every table that is neither synced nor one of LakeSync's is local. A later synced table of the same
name gets another SQLite name, as it does beside any other object of the app.

Rules of the tables of sources, which only pulls write
    1. A table of a source is named ``source.table`` in the app's file, as no synced table can be.
    2. A page, what it makes of the rows, and where the next page begins are one transaction.
    3. Rows that are read again stay readable as *stale* rows until a page brings them, or until
       everything was read and none did.

Law K40: ``docs/spec/client.md``; D13: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_catalogue import APP_COLUMNS_MAX, delete_wins_in
from lakesync.client.storage.app_table import ROW_ID, WRITING, is_reading, quote
from lakesync.client.storage.cell_values import cell
from lakesync.client.storage.file_layout import PREFIX
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, as_read, fold, view
from lakesync.core.names import folded
from lakesync.errors import InternalError, NameTaken, ValidationFailed
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.client.storage.app_catalogue import Catalogue
    from lakesync.client.storage.app_table import ColumnKey
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage
    from lakesync.core.values import CanonicalJson

# --- the app's own --------------------------------------------------------------------------------


_DEFINING: Final = {
    sqlite3.SQLITE_CREATE_TABLE: 0,
    sqlite3.SQLITE_DROP_TABLE: 0,
    sqlite3.SQLITE_CREATE_INDEX: 1,
    sqlite3.SQLITE_DROP_INDEX: 1,
    sqlite3.SQLITE_ALTER_TABLE: 1,
    sqlite3.SQLITE_CREATE_VIEW: 0,
    sqlite3.SQLITE_DROP_VIEW: 0,
}
"""Statements that create or drop tables, indexes and views, and which of SQLite's arguments names
the table or the view.
"""
_SCHEMA: Final = {"sqlite_master", "sqlite_temp_master"}
"""SQLite's own writes to these tables; statements that write to them are refused."""
NO_RETURNING: Final = "RETURNING is not for execute: query what was written afterwards"
_INTERNAL: Final = (PREFIX, "sqlite_")


@dataclass(slots=True)
class Targets:
    """The table that a statement writes to, as SQLite reports while it prepares it."""

    written: set[str] = field(default_factory=set)
    """Tables whose rows it writes itself."""
    by_triggers: set[str] = field(default_factory=set)
    """Tables whose rows triggers write then."""
    defined: set[str] = field(default_factory=set)
    """Tables that it makes, changes or drops."""
    read: set[ColumnKey] = field(default_factory=set)
    """Columns that it reads itself."""

    def check(self, action: int, *details: Any) -> int:
        """Note one thing that the statement does; the authorizer of SQLite."""
        subject, detail = details[0], details[1]
        if action in _DEFINING:
            self.defined.add(details[_DEFINING[action]])
        elif action in WRITING and subject and subject not in _SCHEMA:
            (self.written if details[-1] is None else self.by_triggers).add(subject)
        elif action not in WRITING | {sqlite3.SQLITE_REINDEX}:
            if action == sqlite3.SQLITE_READ and details[-1] is None:
                self.read.add((subject.lower(), detail.lower()))
            return sqlite3.SQLITE_OK if is_reading(action, subject, detail) else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def targets_of(connection: sqlite3.Connection, sql: str, parameters: Any) -> Targets:
    """Return what a statement would write to, without running it."""
    targets = Targets()
    connection.set_authorizer(targets.check)
    try:
        connection.execute(f"EXPLAIN {sql}", parameters).close()
    finally:
        connection.set_authorizer(None)
    return targets


def check_local(catalogue: Catalogue, targets: Targets) -> None:
    """Raise `ValidationFailed` unless a statement writes to local tables only."""
    for name in sorted(targets.written | targets.by_triggers | targets.defined):
        if name.lower().startswith(_INTERNAL):
            raise refused(f"{name} is LakeSync's or SQLite's own, and no table of the app")
        if catalogue.is_pulled(name):
            raise refused(
                f"{name} is pulled from a source: only pulls write it, and forget_source drops it"
            )
        if catalogue.by_sql_name(name) is None:
            continue
        if name in targets.by_triggers:
            raise refused(
                f"a trigger of the app writes to the synced table {name}, which would be no edit: "
                "drop the trigger, and write there by execute"
            )
        raise refused(
            f"{name} is a synced table: its columns and indexes are declared, and it is never "
            "dropped"
        )


def run_local(
    connection: sqlite3.Connection, catalogue: Catalogue, targets: Targets, sql: str, given: Any
) -> int:
    """Run a statement on local tables; returns how many rows it wrote."""
    ours = _ours(connection) if targets.defined else []
    cursor = connection.execute(sql, given)
    gives_rows, rows = cursor.description is not None, cursor.rowcount
    cursor.close()
    if gives_rows:  # whatever it wrote is undone with the transaction, which no error survives
        raise refused(NO_RETURNING)
    if targets.defined:
        if _ours(connection) != ours:  # renamed
            raise refused(f"names that begin with {PREFIX} are LakeSync's own")
        catalogue.objects.check()
    for name in targets.written | targets.by_triggers | targets.defined:
        catalogue.note_local_change(name)
    return max(rows, 0)


def _ours(connection: sqlite3.Connection) -> list[Any]:
    sql = "SELECT name FROM main.sqlite_master WHERE substr(name, 1, ?) = ? COLLATE NOCASE"
    return connection.execute(sql, (len(PREFIX), PREFIX)).fetchall()


def refused(sentence: str) -> ValidationFailed:
    """Return the error of a statement that is not run."""
    return ValidationFailed(sentence, field="sql")


# --- rows of sources ------------------------------------------------------------------------------


_STALE: Final = "UPDATE _lakesync_source_rows SET stale = 1 WHERE source = ?"
_STORE: Final = (
    "INSERT OR REPLACE INTO _lakesync_source_rows (source, name, row_id, state, stale) "
    "VALUES (?, ?, ?, ?, 0)"
)
_REMOVE: Final = "DELETE FROM _lakesync_source_rows WHERE source = ? AND name = ? AND row_id = ?"
_GOES_ON: Final = (
    "INSERT INTO _lakesync_sources (source, snapshot) VALUES (?, ?) "
    "ON CONFLICT (source) DO UPDATE SET snapshot = excluded.snapshot"
)


class SourceRows:
    """What one file holds of one source. Used within the caller's transaction."""

    def __init__(self, file: ClientFile, source: str) -> None:
        self._file = file
        self._source = source
        self._execute = file.connection.execute

    def position(self) -> str:
        """Return the ``snapshot`` that the next page is asked for with; empty at the beginning."""
        row = self._execute(
            "SELECT snapshot FROM _lakesync_sources WHERE source = ?", (self._source,)
        ).fetchone()
        return str(row[0]) if row else ""

    def take(self, page: PullPage, *, is_anew: bool) -> None:
        """Apply a page.

        Args:
            page: the page behind `position`.
            is_anew: the source is not the one that was read before: all rows are read again.
        """
        if is_anew:
            self._execute(_STALE, (self._source,))
        if page.resync is not None:
            for name in self._names():
                if page.resync.concerns(name):
                    self._execute(f"{_STALE} AND name = ?", (self._source, name))
        for name, by_row in _by_table(page).items():
            self._apply(name, by_row)
        if not page.has_more:
            self._drop_stale()
        self._execute(_GOES_ON, (self._source, page.snapshot))

    def forget(self) -> None:
        """Remove the tables, and where reading continues."""
        for name in self._names():
            self._execute(f"DROP TABLE IF EXISTS main.{quote(self._sql_name(name))}")
            self._file.catalogue.note_local_change(self._sql_name(name))
        for table in ("sources", "source_tables", "source_rows"):
            self._execute(f"DELETE FROM _lakesync_{table} WHERE source = ?", (self._source,))  # noqa: S608 - ours

    def _names(self) -> list[str]:
        rows = self._execute(
            "SELECT name FROM _lakesync_source_tables WHERE source = ?", (self._source,)
        )
        return [str(name) for (name,) in rows.fetchall()]

    def _sql_name(self, name: str) -> str:
        return f"{self._source}.{name}"

    def _apply(self, name: str, by_row: Mapping[str, list[Delta]]) -> None:
        """Merge a page's deltas of one table into its rows."""
        self._make(name)
        (schemas,) = self._execute("SELECT schemas FROM _lakesync_sync").fetchone()
        delete_wins = folded(name) in delete_wins_in(schemas)
        known_columns = self._columns(name)
        for row_id, deltas in by_row.items():
            known, seen = self._known(name, row_id), deltas
            removals = [at for at, delta in enumerate(deltas) if delta.op is Op.REMOVE]
            if removals:
                known, seen = EMPTY, deltas[removals[-1] + 1 :]
            state = fold(seen, known)
            if state == EMPTY:
                self._execute(_REMOVE, (self._source, name, row_id))
            else:
                self._execute(_STORE, (self._source, name, row_id, encode_row_state(state)))
            self._hide(name, row_id)
            row = view(as_read(state, delete_wins=delete_wins))
            if row is not None:
                self._show(name, row_id, row, known_columns)
        self._file.catalogue.note_local_change(self._sql_name(name))

    def _known(self, name: str, row_id: str) -> RowState:
        row = self._execute(
            "SELECT state FROM _lakesync_source_rows "
            "WHERE source = ? AND name = ? AND row_id = ? AND NOT stale",
            (self._source, name, row_id),
        ).fetchone()
        return decode_row_state(row[0]) if row else EMPTY

    def _make(self, name: str) -> None:
        """Make the app's table of a table that is seen first."""
        sql_name = self._sql_name(name)
        if name in self._names():
            return
        if self._execute(
            "SELECT 1 FROM main.sqlite_master WHERE name = ? COLLATE NOCASE", (sql_name,)
        ).fetchone():
            raise NameTaken(
                f"the app has a table, a view or an index named {sql_name} of its own: rename it, "
                "and pull again",
                field="source",
            )
        self._execute(f"CREATE TABLE main.{quote(sql_name)} ({ROW_ID} TEXT NOT NULL PRIMARY KEY)")
        self._execute(
            "INSERT INTO _lakesync_source_tables (source, name) VALUES (?, ?)",
            (self._source, name),
        )

    def _hide(self, name: str, row_id: str) -> None:
        """Remove a row of the app's table."""
        table = f"main.{quote(self._sql_name(name))}"
        self._execute(f"DELETE FROM {table} WHERE {ROW_ID} = ?", (row_id,))  # noqa: S608 - quoted

    def _show(
        self, name: str, row_id: str, row: Mapping[str, CanonicalJson], known: set[str]
    ) -> None:
        """Write a row of the app's table, of which these columns are known, in small letters."""
        table = f"main.{quote(self._sql_name(name))}"
        there = []
        for column in row:
            small = folded(column)
            if small == ROW_ID or (small not in known and len(known) > APP_COLUMNS_MAX):
                continue
            if small not in known:
                self._execute(f"ALTER TABLE {table} ADD COLUMN {quote(column)}")
                known.add(small)
            there.append(column)
        names = ", ".join([ROW_ID, *map(quote, there)])
        marks = ", ".join("?" * (len(there) + 1))
        values = [cell(row[column]) for column in there]
        self._execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", (row_id, *values))  # noqa: S608 - quoted

    def _columns(self, name: str) -> set[str]:
        """Return the columns of an app's table, in small letters."""
        rows = self._execute("SELECT name FROM pragma_table_info(?)", (self._sql_name(name),))
        return {folded(str(column)) for (column,) in rows.fetchall()}

    def _drop_stale(self) -> None:
        """Remove the rows that were read again and that no page brought."""
        stale = self._execute(
            "SELECT name, row_id FROM _lakesync_source_rows WHERE source = ? AND stale",
            (self._source,),
        ).fetchall()
        for name, row_id in stale:
            self._execute(_REMOVE, (self._source, name, row_id))
            self._hide(name, row_id)
            self._file.catalogue.note_local_change(self._sql_name(name))


def forget_all(file: ClientFile) -> None:
    """Remove what a file holds of all sources, within the caller's transaction."""
    for (source,) in file.connection.execute("SELECT source FROM _lakesync_sources").fetchall():
        SourceRows(file, str(source)).forget()


def _by_table(page: PullPage) -> dict[str, dict[str, list[Delta]]]:
    tables: dict[str, dict[str, list[Delta]]] = defaultdict(lambda: defaultdict(list))
    count = 0
    for delta in (delta for run in page.records for delta in decode_records(run)):
        tables[delta.table][delta.row_id].append(delta)
        count += 1
    if count != page.count:
        raise InternalError(f"the page counts {page.count} deltas and holds {count}; pull again")
    return tables
