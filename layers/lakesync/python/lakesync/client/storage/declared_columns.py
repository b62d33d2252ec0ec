"""Typed columns and indexes that an app declares for its tables, by name or by a class of rows.

Not needed to sync: an undeclared column stores each value unchanged. A declared type determines
what the cells say (`lakesync.client.storage.cell_values`); the exact value stays in the row state
in both cases, so a table whose declaration changes is filled again from the states.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    get_args,
    get_origin,
)

from lakesync.client.arguments import checked_text
from lakesync.client.storage.app_table import ROW_ID, quote, sql_type_of
from lakesync.client.storage.cell_values import kind_of
from lakesync.client.storage.file import fill_again
from lakesync.core.column_types import precision_scale
from lakesync.core.names import check_table_name
from lakesync.core.schema import TableSchema
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile

# --- the columns of a class -----------------------------------------------------------------------


_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    datetime: "timestamp",
    date: "date",
    bytes: "bytes",
    **dict.fromkeys((Any, object, list, dict), "json"),
}
_HOW: Final = 'say which by Annotated[…, "string"], with the name of a column type'
_DIGITS: Final = 'say how many digits it has: Annotated[Decimal, "decimal(9,2)"]'


def column_types(cls: type[Any]) -> dict[str, str]:
    """Return the types of the columns that a class's fields are, by their hints.

    A text in ``Annotated`` names a column's type itself; a ``Decimal`` needs one, or pydantic's
    ``max_digits`` and ``decimal_places``. ``_row_id`` is no column.

    Raises:
        ValidationFailed: it is no such class, or a field's type is not a column's.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as exc:
        raise _refused(cls, f"its types are unknown: {exc}") from exc
    columns = {}
    for name, column, metadata in _fields(cls):
        if column == ROW_ID:
            continue
        kind, sentence = _type_of(hints[name], metadata)
        if not kind:
            raise _refused(cls, f"the field {name} is of no column's type: {sentence}")
        columns[column] = kind
    return columns


def _fields(cls: type[Any]) -> Iterable[tuple[str, str, Iterable[object]]]:
    """Return each field's name, its column's name, and its other declarations."""
    if dataclasses.is_dataclass(cls):
        return [(field.name, field.name, ()) for field in dataclasses.fields(cls) if field.init]
    if hasattr(cls, "model_validate") and hasattr(cls, "model_fields"):
        return [
            (name, str(field.validation_alias or field.alias or name), field.metadata)
            for name, field in cls.model_fields.items()
        ]
    raise _refused(cls, "it is neither")


def _type_of(hint: Any, metadata: Iterable[object] = ()) -> tuple[str, str]:
    """Return the column type of a hint; where it is none, nothing, and what to do."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        return _type_of(others[0], metadata) if len(others) == 1 else ("", _HOW)
    if get_origin(hint) is Annotated:
        said = [*hint.__metadata__, *metadata]
        named = [part for part in said if isinstance(part, str)]
        return (named[0], "") if named else _type_of(get_args(hint)[0], said)
    if get_origin(hint) is Literal:
        return ("string", "") if all(isinstance(one, str) for one in get_args(hint)) else ("", _HOW)
    plain = get_origin(hint) or hint
    if plain is Decimal:
        return _decimal(metadata)
    is_known = isinstance(plain, type) or plain is Any
    return (_TYPES.get(plain, "") if is_known else "", _HOW)


def _decimal(metadata: Iterable[object]) -> tuple[str, str]:
    for part in metadata:
        for said in (part, *getattr(part, "metadata", ())):  # pydantic's Field has its own
            digits, places = (
                getattr(said, name, None) for name in ("max_digits", "decimal_places")
            )
            if isinstance(digits, int) and isinstance(places, int):
                return f"decimal({digits},{places})", ""
    return "", _DIGITS


def _refused(cls: type[Any], sentence: str) -> ValidationFailed:
    return ValidationFailed(
        f"a table is declared by names and types, by a dataclass or by a pydantic model; of "
        f"{cls.__name__}, {sentence}",
        field="columns",
    )


# --- declaring ------------------------------------------------------------------------------------


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
        new = {
            name: sql_type_of(kind) for name, kind in kinds.items() if name not in declared.columns
        }
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
