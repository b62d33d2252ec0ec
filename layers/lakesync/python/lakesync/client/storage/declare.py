"""Typed columns and indexes that an app declares for its tables.

Not needed to sync: an undeclared column stores each value unchanged. A declared type determines
SQLite's affinity, hence its comparisons and its more compact storage; the exact value stays in the
row state in both cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

from lakesync.client.arguments import checked_text
from lakesync.client.storage.app_table import DECIMAL, ROW_ID, quote, table_sql
from lakesync.client.storage.row_class import column_types
from lakesync.core.column_types import precision_scale
from lakesync.core.names import check_table_name
from lakesync.core.schema import TableSchema
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    import sqlite3

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile

DeclaredColumns: TypeAlias = "Mapping[str, str] | type[Any] | TableSchema"
"""Types by names; or the class of the table's rows, a dataclass or a pydantic model; or a schema,
as a gateway has it.
"""
_SQL_TYPES: Final = {
    "string": "TEXT",
    "number": "REAL",
    "boolean": "INTEGER",
    "json": "",  # a number stays a number, an object is its JSON text
    "null": "",
    "integer": "INTEGER",
    "timestamp": "TEXT",
    "date": "TEXT",
    "bytes": "TEXT",  # base64, as on the wire
}


def declare(
    file: ClientFile,
    table: str,
    columns: DeclaredColumns,
    indexes: Sequence[Sequence[str]],
) -> None:
    """Give a table typed columns and indexes; safe to repeat."""
    if isinstance(columns, type):
        columns = column_types(columns)
    elif isinstance(columns, TableSchema):
        columns = {column.name: column.type for column in columns.columns}
    with file.database.transaction() as connection:
        _check_types(table, columns, indexes)
        types = {name: type_name.replace(" ", "") for name, type_name in columns.items()}
        sql_types = {name: _sql_type(type_name) for name, type_name in types.items()}
        declared = file.catalogue.table(table, ())
        new = {name: kind for name, kind in sql_types.items() if name not in declared.columns}
        file.catalogue.widen(declared, new)
        file.catalogue.keep_declared(declared, types)
        file.catalogue.note_change(declared)
        _retype(connection, declared, sql_types)
        for index in indexes:
            _index(connection, declared, index)


def _check_types(table: object, columns: object, indexes: object) -> None:
    check_table_name(checked_text(table, "table"), "table")
    if not isinstance(columns, Mapping) or not all(
        isinstance(part, str) for pair in columns.items() for part in pair
    ):
        raise ValidationFailed("columns map names to types, both text", field="columns")
    if not _is_list(indexes) or not all(
        _is_list(index) and all(isinstance(name, str) for name in index) for index in indexes
    ):
        raise ValidationFailed("each index is a list of names, each of them text", field="indexes")


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _sql_type(type_name: str) -> str:
    return _SQL_TYPES[type_name] if precision_scale(type_name) is None else DECIMAL


def _retype(connection: sqlite3.Connection, table: AppTable, sql_types: Mapping[str, str]) -> None:
    """Create the table again if an existing column has another type; its rows are copied."""
    # Not the function of this name, whose place a table of the app may have taken.
    columns = connection.execute(f"PRAGMA main.table_info({quote(table.sql_name)})").fetchall()
    current = {name: kind for _, name, kind, *_ in columns}
    wanted = {
        sql_name: sql_types.get(name, current[sql_name])
        for name, sql_name in table.columns.items()
        if sql_name
    }
    if all(current[name] == kind for name, kind in wanted.items()):
        return
    dependants = connection.execute(
        "SELECT sql FROM sqlite_master "
        "WHERE tbl_name = ? COLLATE NOCASE AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        (table.sql_name,),
    ).fetchall()
    names = ", ".join(map(quote, (ROW_ID, *wanted)))
    copy = f"_lakesync_new_{table.id}"
    old, new = quote(table.sql_name), quote(copy)
    # Otherwise the renaming would fail if the app has a view on the table, which is gone meanwhile.
    connection.execute("PRAGMA legacy_alter_table = ON")
    try:
        connection.execute(table_sql(copy, wanted.items()))
        connection.execute(
            f"INSERT INTO {new} ({names}) SELECT {names} FROM {old}"  # noqa: S608 - quoted names
        )
        connection.execute(f"DROP TABLE {old}")
        connection.execute(f"ALTER TABLE {new} RENAME TO {old}")
        for (sql,) in dependants:
            connection.execute(sql)
    finally:
        connection.execute("PRAGMA legacy_alter_table = OFF")


def _index(connection: sqlite3.Connection, table: AppTable, columns: Sequence[str]) -> None:
    sql_names = [table.columns.get(name) for name in columns]
    if not sql_names or None in sql_names:
        raise ValidationFailed(
            f"an index of {table.name} names {', '.join(columns) or 'no column'}; declare its "
            "columns first",
            field="indexes",
        )
    digest = hashlib.sha256("\0".join(columns).encode()).hexdigest()[:10]
    name = quote(f"_lakesync_index_{table.id}_{digest}")
    members = ", ".join(quote(sql_name) for sql_name in sql_names if sql_name)
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {quote(table.sql_name)} ({members})")
