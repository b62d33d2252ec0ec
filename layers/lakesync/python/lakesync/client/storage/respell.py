"""Gives a table or a column another spelling of its name, everywhere in the file.

Needed if only this client had named it so far: the gateway knows it under another spelling, and
treats names that differ only in case as one name. Waiting edits are sent under the new spelling.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from lakesync.client.storage.app_table import quote
from lakesync.client.upload.entries import Status
from lakesync.core.delta import known_delta
from lakesync.errors import NameTaken, TableNotDeclared
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.client.storage.app_table import AppTable

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
