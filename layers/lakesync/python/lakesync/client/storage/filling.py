"""The app's tables in SQL, and their rows where what cells say changes.

A table whose declared types change, or that an earlier layout wrote, is made again and filled from
the row states: these have every value as it was written, whatever a column was declared as.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.app_table import quote, table_sql
from lakesync.client.storage.failures import SALVAGE
from lakesync.client.storage.forms import sql_type
from lakesync.errors import FileCorrupt

if TYPE_CHECKING:
    import sqlite3

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.database import Database
    from lakesync.client.storage.rows import Rows

_ROWS_AT_ONCE: Final = 1_000
_OLD_CELLS: Final = "SELECT DISTINCT table_id FROM _lakesync_columns WHERE forms IS NULL"


def fill_again(connection: sqlite3.Connection, rows: Rows, table: AppTable) -> None:
    """Create a table of the app again, by its columns' types, with the rows of its states."""
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
    stored = rows.of_table(table.id)
    while part := list(islice(stored, _ROWS_AT_ONCE)):
        rows.show_states((table, row_id, row.state) for row_id, row in part)
    table.barred_triggers = barred
    for (sql,) in dependants:
        connection.execute(sql)


def bring_up(database: Database, catalogue: Catalogue, rows: Rows) -> None:
    """Fill the tables again whose cells an earlier layout wrote.

    Raises:
        FileCorrupt: the file is damaged. It is read through before it is changed.
    """
    if not database.read(_OLD_CELLS)[1]:
        return
    if database.read("PRAGMA quick_check(1)")[1] != [("ok",)]:
        raise FileCorrupt(SALVAGE)
    with database.transaction() as connection:
        for (table_id,) in connection.execute(_OLD_CELLS).fetchall():
            fill_again(connection, rows, catalogue.by_id(table_id))
