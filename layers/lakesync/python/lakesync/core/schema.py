"""Table schemas: which columns a table has, of which types, and what else is declared for it.

A table needs no schema to sync. With one, each delta's columns and types are checked, and the
lake's columns are typed. How a schema may change: `lakesync.core.evolution`.
Laws S1, S2, S4: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import fits, precision_scale
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.names import (
    check_identifier,
    check_table_name,
    first_spellings,
    folded,
    name_taken,
)
from lakesync.core.partitioning import partition_field
from lakesync.core.values import NULL
from lakesync.errors import SchemaMismatch, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.core.delta import Delta
    from lakesync.core.partitioning import PartitionField

SOURCE_TABLE_CHARACTERS_MAX: Final = 256
"""Length of the name of a table in another system, with its qualifiers there."""
DESCRIPTION_BYTES_MAX: Final = 160
"""Length of a column's description, in UTF-8. With type and name it becomes a comment of at most
255 bytes, the limit of the Glue Data Catalog."""
_ONE_LINE: Final = re.compile(r"[ -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
ROW_ID: Final = "row_id"
"""What a primary key may name besides declared columns: the row's id."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema; its type is one of `column_types.TYPES`, or ``decimal(p,s)``."""

    name: str
    type: str
    nullable: bool = True
    description: str = ""
    """What it means, for people who query the lake."""

    def __post_init__(self) -> None:
        check_identifier(self.name, "columns.name")
        precision_scale(self.type)
        self._check_description()

    def _check_description(self) -> None:
        is_line = _ONE_LINE.fullmatch(self.description)
        if not is_line or len(self.description.encode()) > DESCRIPTION_BYTES_MAX:
            raise ValidationFailed(
                f"the description of {self.name} is one line of {DESCRIPTION_BYTES_MAX} bytes at"
                " the most",
                field="columns.description",
            )


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What is declared for one table. Valid by construction.

    Raises:
        ValidationFailed: a name is malformed.
        SchemaMismatch: a type is unknown, a column repeats, a key names no column.
    """

    table: str
    columns: tuple[Column, ...]
    version: int = 1
    primary_key: tuple[str, ...] = ()
    """For adapters: the columns that identify a row where there are no row ids."""
    soft_delete: bool = False
    """For adapters: a deleted row is marked in the destination, and not removed."""
    external_id_column: str | None = None
    """For adapters: the column that names the row in the other system."""
    source_table: str | None = None
    """For adapters: the table's name in the other system."""
    append: bool = False
    """Rows are events: written once, never merged, at a fraction of the cost."""
    partition: tuple[str, ...] = ()
    """What the Iceberg table is partitioned by; see `lakesync.core.partitioning`."""
    keep_tombstones: bool = False
    """Deletions are never forgotten, so deltas of any age are merged: for tables into which history
    is loaded; see ``docs/adr/0008-loading-old-data.md``."""
    delete_wins: bool = False
    """An update never restores a row, only a newer insert does; see `core.merge.as_read`."""
    sort: tuple[str, ...] = ()
    """The columns by which rows are sorted within the files of the Iceberg table."""

    def __post_init__(self) -> None:
        check_table_name(self.table, "table")
        if self.append and self.delete_wins:
            raise SchemaMismatch("events are never deleted: append or deleteWins", field="append")
        names = [column.name for column in self.columns]
        if not 0 < len(names) <= COLUMNS_MAX:
            raise SchemaMismatch(f"a schema needs 1 to {COLUMNS_MAX} columns", field="columns")
        if len(set(map(folded, names))) != len(names):
            raise SchemaMismatch("a column is declared twice, or in two spellings", field="columns")
        external = () if self.external_id_column is None else (self.external_id_column,)
        for field, used in (
            ("primaryKey", self.primary_key),
            ("partition", tuple(field.column for field in self.partition_fields)),
            ("sort", self.sort),
            ("externalIdColumn", external),
        ):
            if len(set(used)) != len(used):
                raise SchemaMismatch(f"{field} names a column twice", field=field)
            unknown = sorted(set(used) - {*names, *([ROW_ID] if field == "primaryKey" else ())})
            if unknown:
                raise SchemaMismatch(f"{field} names no declared column: {unknown}", field=field)
        source = self.source_table
        if source is not None and not 1 <= len(source) <= SOURCE_TABLE_CHARACTERS_MAX:
            raise SchemaMismatch(
                f"sourceTable is 1 to {SOURCE_TABLE_CHARACTERS_MAX} characters", field="sourceTable"
            )

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """The parsed form of `partition`."""
        return tuple(map(partition_field, self.partition))


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of tables: those that the caller may know."""

    version: int
    """Increases with every schema that is registered or changed; 0 without any."""
    tables: tuple[TableSchema, ...]
    strict: bool = False
    """Only tables with a schema may be written."""


def check_delta(schema: TableSchema, delta: Delta, *, typed: bool = True) -> None:
    """Refuse a delta that does not fit its table; check the types of values only if ``typed``.

    Raises:
        SchemaMismatch: an unknown column, a value of another type, or null where it may not be.
        NameTaken: a column is declared under another spelling.
    """
    columns = {column.name: column for column in schema.columns}
    for name, value in delta.columns:
        column = columns.get(name)
        if column is None:
            first = first_spellings(columns).get(folded(name))
            if first is not None:
                raise name_taken(name, first, "column")
            raise SchemaMismatch(
                f"table {schema.table} has no column {name}; register it, or leave it out",
                field=name,
            )
        if value == NULL:
            if not column.nullable:
                raise SchemaMismatch(f"{schema.table}.{name} may not be null", field=name)
        elif typed and not fits(column.type, value):
            message = f"{schema.table}.{name} is {column.type}; the value is not"
            raise SchemaMismatch(message, field=name)


def shown_to_clients(
    schema: TableSchema, omitted: Collection[str] = frozenset()
) -> TableSchema | None:
    """Return the part of a schema that a client is sent: nothing about the lake or other systems.

    None if all of its columns, by their folded names, are left out of what the client is sent.
    """
    columns = tuple(
        replace(column, description="")
        for column in schema.columns
        if folded(column.name) not in omitted
    )
    return replace(
        schema, columns=columns, soft_delete=False, external_id_column=None, source_table=None,
        partition=(), sort=(), keep_tombstones=False,
    ) if columns else None  # fmt: skip
