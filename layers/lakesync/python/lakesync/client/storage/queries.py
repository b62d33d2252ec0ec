"""The app's queries: what SQL they may hold, and how their answers are read."""

from __future__ import annotations

import sqlite3
from typing import Final, TypeAlias

Answer: TypeAlias = "tuple[list[str], list[tuple[object, ...]]]"
"""The column names and the rows of a query."""

BOOLEANS: Final = (
    "SELECT sql_name FROM _lakesync_columns WHERE sql_name IS NOT NULL "
    "GROUP BY sql_name HAVING min(is_boolean) = 1"
)
"""Columns that hold nothing but booleans in any table that has them."""
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


def boolean_names(answer: Answer) -> frozenset[str]:
    """Give the names that `BOOLEANS` answers with, in small letters."""
    return frozenset(str(name).lower() for (name,) in answer[1])


def answer_of(connection: sqlite3.Connection, sql: str, parameters: object = ()) -> Answer:
    """Run one query."""
    cursor = connection.execute(sql, parameters)  # type: ignore[arg-type]  # sequence or mapping
    try:
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()


def only_reads(action: int, subject: str | None, detail: str | None, *_: object) -> int:
    """Let SQLite prepare what reads, and nothing else."""
    allowed = action in _READING or (
        (action == sqlite3.SQLITE_FUNCTION and detail != "load_extension")
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS)
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS_BARE and detail is None)
        # SQLite says this of table-valued functions; it refuses to write to that table by itself.
        or (action == sqlite3.SQLITE_UPDATE and subject == "sqlite_master")
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
