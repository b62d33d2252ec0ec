"""Local tables: the app's own tables in its file, which never leave the device.

An app creates and writes them by `execute`, in one transaction with its edits, and its views. Every
table that is neither synced nor one of LakeSync's is local. A later synced table of the same name
gets another SQLite name, as it does beside any other object of the app.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_objects import WRITING
from lakesync.client.storage.reading import is_reading
from lakesync.client.storage.tables import PREFIX
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.reading import ColumnKey

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
