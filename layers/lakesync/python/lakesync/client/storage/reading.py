"""Checks of queries: that they only read, and which columns of which tables they read."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, TypeAlias

from lakesync.client.storage.tables import JOURNAL, PREFIX

Answer: TypeAlias = "tuple[list[str], list[tuple[object, ...]]]"
"""The column names and the rows of a query."""
ColumnKey: TypeAlias = tuple[str, str]
"""SQLite's names of a table and a column of it, in small letters."""

_READING: Final = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_PRAGMAS: Final = {
    *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
    *("foreign_key_list", "database_list", "collation_list", "compile_options", "function_list"),
    *("integrity_check", "quick_check"),
}
"""Those that tell of a table or an index, which they may be given by name."""
_PRAGMAS_BARE: Final = {
    *("user_version", "application_id", "schema_version", "data_version", "page_count"),
    *("page_size", "freelist_count", "journal_mode", "synchronous", "encoding"),
}
"""Those that only tell as long as they are given nothing."""


def reads_of(
    connection: sqlite3.Connection, sql: str, parameters: object = ()
) -> frozenset[ColumnKey]:
    """Return the columns that a query reads, and views of which it reads columns.

    SQLite reports them, including views, without running the query.
    """
    read: set[ColumnKey] = set()

    def note(action: int, subject: str | None, detail: str | None, *details: Any) -> int:
        if action == sqlite3.SQLITE_READ and subject:
            read.add((subject.lower(), (detail or "").lower()))
        return only_reads(action, subject, detail, *details)

    connection.set_authorizer(note)
    try:
        answer_of(connection, f"EXPLAIN {sql}", parameters)
    finally:
        connection.set_authorizer(only_reads)
    return frozenset(read)


def tables_in(read: frozenset[ColumnKey]) -> frozenset[str] | None:
    """Return the tables of `reads_of`, in small letters; None if not only an app's own."""
    tables = frozenset(table for table, _ in read)
    internal = any(name.startswith((PREFIX, "sqlite_", "pragma_")) for name in tables)
    return tables if tables and not internal else None


def answer_of(connection: sqlite3.Connection, sql: str, parameters: object = ()) -> Answer:
    """Run one query."""
    cursor = connection.execute(sql, parameters)  # type: ignore[arg-type]  # sequence or mapping
    try:
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()


def only_reads(action: int, subject: str | None, detail: str | None, *_: object) -> int:
    """Let SQLite prepare what reads, and nothing else."""
    return sqlite3.SQLITE_OK if is_reading(action, subject, detail) else sqlite3.SQLITE_DENY


def is_reading(action: int, subject: str | None, detail: str | None) -> bool:
    """Return whether something that SQLite is about to prepare reads, and nothing else."""
    if action == sqlite3.SQLITE_READ and subject == JOURNAL:
        return False
    return action in _READING or (
        (action == sqlite3.SQLITE_FUNCTION and detail != "load_extension")
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS)
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS_BARE and detail is None)
        # SQLite says this of table-valued functions; it refuses to write to that table by itself.
        or (action == sqlite3.SQLITE_UPDATE and subject == "sqlite_master")
    )
