"""The app's tables in SQL, and their rows where what cells say changes.

A table whose declared types change, or that an earlier layout wrote, is made again and filled from
the row states: these have every value as it was written, whatever a column was declared as.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.app_objects import suspended
from lakesync.client.storage.app_table import DECIMAL, ROW_ID, quote, table_sql
from lakesync.client.storage.cells import rewriter

if TYPE_CHECKING:
    import sqlite3

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile

_ROWS_AT_ONCE: Final = 1_000
_OLD_CELLS: Final = "SELECT DISTINCT table_id FROM _lakesync_columns WHERE forms IS NULL"


def fill_again(file: ClientFile, table: AppTable) -> None:
    """Create a table of the app again, by its columns' types, with the rows of its states."""
    connection = file.connection
    dependants = connection.execute(
        "SELECT sql FROM sqlite_master "
        "WHERE tbl_name = ? COLLATE NOCASE AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table.sql_name,),
    ).fetchall()
    connection.execute(f"DROP TABLE main.{quote(table.sql_name)}")
    columns = table.columns.items()
    shown = [(sql_name, sql_type(table.kind(name))) for name, sql_name in columns if sql_name]
    connection.execute(table_sql(table.sql_name, shown))
    connection.execute("UPDATE _lakesync_columns SET forms = 0 WHERE table_id = ?", (table.id,))
    table.forms = dict.fromkeys(table.columns, 0)
    table.prepare()
    barred, table.barred_triggers = table.barred_triggers, ()  # no trigger is there now
    rows = file.rows.of_table(table.id)
    while part := list(islice(rows, _ROWS_AT_ONCE)):
        file.rows.show_states((table, row_id, row.state) for row_id, row in part)
    table.barred_triggers = barred
    for (sql,) in dependants:
        connection.execute(sql)


def bring_up(file: ClientFile) -> ClientFile:
    """Fill the tables again whose cells an earlier layout wrote; returns the file."""
    if not file.database.read(_OLD_CELLS)[1]:
        return file
    with file.database.transaction() as connection:
        for (table_id,) in connection.execute(_OLD_CELLS).fetchall():
            fill_again(file, file.catalogue.by_id(table_id))
    return file


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
