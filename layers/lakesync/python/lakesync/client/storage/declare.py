"""Typed columns and indexes that an app declares for its tables.

Not needed to sync: an undeclared column stores each value unchanged. A declared type determines
what the cells say (`lakesync.client.storage.cells`); the exact value stays in the row state in both
cases, so a table whose declaration changes is filled again from the states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from lakesync.client.arguments import checked_text
from lakesync.client.storage.app_table import quote
from lakesync.client.storage.filling import fill_again
from lakesync.client.storage.forms import sql_type
from lakesync.client.storage.python_values import kind_of
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
        kinds = {name: _kind(type_name) for name, type_name in types.items()}
        declared = file.catalogue.table(table, ())
        new = {name: sql_type(kind) for name, kind in kinds.items() if name not in declared.columns}
        changed = [name for name, kind in kinds.items() if declared.kind(name) != kind]
        file.catalogue.widen(declared, new)
        file.catalogue.keep_declared(declared, types)
        file.catalogue.note_change(declared)
        if set(changed) - new.keys():
            fill_again(file.connection, file.rows, declared)
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


def _kind(type_name: str) -> str:
    precision_scale(type_name)  # which raises for what is no type
    return kind_of(type_name)


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
