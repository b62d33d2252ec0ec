"""Iceberg's schemas of a table's state and changes, and how they follow a definition."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from lakesync.core.column_types import precision_scale
from lakesync.core.names import folded, lake_columns
from lakesync.materialise.columns import LakeColumn
from lakesync.materialise.iceberg_table import own_columns
from lakesync.materialise.shape import COLUMNS, DELETE_WINS, STATE_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType

    from lakesync.adapters.sql.definition import Definition
    from lakesync.materialise.shape import Kind

REFUSED: Final = "_refused"
"""The state of a refused row, which its other columns do not show; NULL for all others."""
_TYPES: Final[dict[str, type[Any]]] = {
    "number": DoubleType,
    "boolean": BooleanType,
    "integer": LongType,
    "timestamp": TimestamptzType,
    "date": DateType,
    "bytes": BinaryType,
}
"""Columns of all other types are text."""
_OWN: Final[dict[str, type[Any]]] = {
    "STRING": StringType,
    "BIGINT": LongType,
    "INT": IntegerType,
    "BOOLEAN": BooleanType,
    "TIMESTAMP": TimestamptzType,
}


def column_type(kind: str) -> IcebergType:
    """Return a column's type in Iceberg."""
    digits = precision_scale(kind)
    if digits is not None:
        return DecimalType(*digits)
    made: IcebergType = _TYPES.get(kind, StringType)()
    return made


def first_schema(kind: Kind) -> Schema:
    """Return the schema of a new table: LakeSync's own columns."""
    numbers = count(1)
    names = {**kind.head, **kind.tail} | ({REFUSED: "STRING"} if kind is STATE_TABLE else {})
    fields = []
    for name, sql in names.items():
        number = next(numbers)
        made: Any
        if sql == "ARRAY<STRING>":
            made = ListType(next(numbers), StringType(), element_required=False)
        elif sql == "MAP<STRING, STRING>":
            made = MapType(
                next(numbers), StringType(), next(numbers), StringType(), value_required=False
            )
        else:
            made = _OWN[sql]()
        fields.append(NestedField(number, name, made, required=False))
    return Schema(*fields)


def follow_definition(
    transaction: Transaction, definition: Definition, others: Iterable[LakeColumn] = ()
) -> tuple[LakeColumn, ...]:
    """Have a table get the columns of a definition; returns them.

    Args:
        transaction: of the table.
        definition: what it is to have.
        others: the columns of the other table that tells of the same one: a name is the same.
    """
    current = own_columns(transaction.table_metadata)
    taken = {folded(one.written): one.name for one in (*others, *current)}
    names = lake_columns(definition.columns, taken)
    wanted = tuple(
        LakeColumn(names[written], kind, written) for written, kind in definition.columns.items()
    )
    there = {column.name: column for column in current}
    changed = [column for column in wanted if there.get(column.name) != column]
    if changed:
        with transaction.update_schema() as update:
            for column in changed:
                _follow(update, there.get(column.name), column)
    _describe(transaction, wanted, definition)
    return wanted


def _follow(update: UpdateSchema, before: LakeColumn | None, column: LakeColumn) -> None:
    wanted = column_type(column.type)
    if before is not None and isinstance(wanted, DecimalType) and precision_scale(before.type):
        update.update_column(column.name, field_type=wanted, doc=column.comment)
    elif before is not None and column_type(before.type) == wanted:
        update.update_column(column.name, doc=column.comment)
    else:
        if before is not None:  # every row is written anew with it
            update.delete_column(column.name)
        update.add_column(column.name, wanted, doc=column.comment)


def _describe(
    transaction: Transaction, columns: Iterable[LakeColumn], definition: Definition
) -> None:
    """Note what the columns are, and how rows are read, where that is not noted."""
    schema = transaction.table_metadata.schema()
    recorded = {
        str(schema.find_field(column.name).field_id): [column.type, column.written]
        for column in columns
    }
    wins = bool(definition.schema and definition.schema.delete_wins)
    said = {COLUMNS: json.dumps(recorded), DELETE_WINS: "true" if wins else "false"}
    properties = transaction.table_metadata.properties
    if any(properties.get(name) != text for name, text in said.items()):
        transaction.set_properties(said)
