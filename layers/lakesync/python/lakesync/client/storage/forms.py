"""The SQL types of an app's columns, and which of the values that look alike they have held.

What forms are, and why cells are written anew where they change: `lakesync.client.storage.cells`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.storage.app_objects import suspended
from lakesync.client.storage.app_table import DECIMAL, ROW_ID, quote
from lakesync.client.storage.cells import rewriter

if TYPE_CHECKING:
    import sqlite3

    from lakesync.client.storage.app_table import AppTable


def keep_forms(connection: sqlite3.Connection, table: AppTable, name: str, forms: int) -> None:
    """Store the forms of a column, and mark the cells that these change the reading of."""
    connection.execute(
        "UPDATE _lakesync_columns SET forms = ? WHERE table_id = ? AND name = ?",
        (forms, table.id, name),
    )
    sql_name = table.columns.get(name)
    now = rewriter(table.kind(name), table.forms.get(name, 0), forms)
    if sql_name is None or now is None:
        return
    where, mark = now
    column, key, shown = quote(sql_name), quote(ROW_ID), quote(table.sql_name)
    rows = connection.execute(
        f"SELECT {column}, {key} FROM {shown} WHERE {where.format(column)}"  # noqa: S608 - quoted
    ).fetchall()
    with suspended(connection, table):
        connection.executemany(
            f"UPDATE {shown} SET {column} = ? WHERE {key} = ?",  # noqa: S608 - quoted
            [(mark(content), row_id) for content, row_id in rows],
        )


def sql_type(kind: str) -> str:
    """Return the SQL type of a column of a declared kind; mostly none, so SQLite converts nothing.

    That of decimals makes text of what they are compared with.
    """
    return DECIMAL if kind == "decimal" else ""
