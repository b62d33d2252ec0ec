"""How a schema may change: it only grows, so that no row, client or table is left behind.

Law S3: ``docs/spec/schema.md``, with the table of what may change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.core.column_types import widens
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.partitioning import check_partition_type, check_sort_type
from lakesync.errors import Conflict

if TYPE_CHECKING:
    from lakesync.core.schema import Column, TableSchema


def evolve(current: TableSchema | None, wanted: TableSchema) -> TableSchema:
    """Return the schema in force after ``wanted`` is registered; the same one, if unchanged.

    Raises:
        SchemaMismatch: a column cannot partition a table, or sort it.
        NameTaken: a column is declared under another spelling.
        Conflict: the change would break existing rows or clients; the message says how to reach the
            goal instead.
    """
    if current is not None and replace(wanted, version=current.version) == current:
        return current
    _check_layout(wanted)
    if current is None:
        return replace(wanted, version=1)
    _check_table(current, wanted)
    declared = {column.name: column for column in wanted.columns}
    spellings = first_spellings(declared)
    for column in current.columns:
        spelled = spellings.get(folded(column.name), column.name)
        if spelled != column.name:
            raise name_taken(spelled, column.name, "column")
        _check_kept(column, declared.pop(column.name, None))
    for column in declared.values():
        if not column.nullable:
            raise Conflict(
                f"the new column {column.name} must be nullable: rows exist without it; register "
                "it with nullable true",
                field=column.name,
            )
    return replace(wanted, version=current.version + 1)


def _check_layout(schema: TableSchema) -> None:
    """Refuse columns that a table cannot be partitioned or sorted by."""
    types = {column.name: column.type for column in schema.columns}
    for field in schema.partition_fields:
        check_partition_type(field, types[field.column])
    for name in schema.sort:
        check_sort_type(name, types[name])


def _check_table(current: TableSchema, wanted: TableSchema) -> None:
    """Refuse a change of what is declared for the table as a whole.

    ``softDelete``, ``sourceTable``, ``keepTombstones``, ``partition`` and ``sort`` only affect
    later work, and may change freely.
    """
    if wanted.append != current.append:
        raise Conflict("append cannot change; make a new table and copy the rows", field="append")
    if wanted.delete_wins != current.delete_wins:
        raise Conflict(
            "deleteWins cannot change: rows would appear and disappear without being changed; "
            "make a new table and copy the rows",
            field="deleteWins",
        )
    if wanted.primary_key != current.primary_key:
        raise Conflict(
            "primaryKey cannot change: other systems hold rows under it; make a new table and copy "
            "the rows",
            field="primaryKey",
        )
    if current.external_id_column not in {None, wanted.external_id_column}:
        raise Conflict(
            f"externalIdColumn cannot change: other systems know the rows by "
            f"{current.external_id_column}; make a new table and copy the rows",
            field="externalIdColumn",
        )


def _check_kept(current: Column, wanted: Column | None) -> None:
    if wanted is None:
        raise Conflict(
            f"column {current.name} cannot be removed; stop writing it instead", field=current.name
        )
    if current.nullable and not wanted.nullable:
        raise Conflict(
            f"column {current.name} cannot become non-null: rows hold null already; add a new "
            "column",
            field=current.name,
        )
    if not widens(current.type, wanted.type):
        raise Conflict(
            f"column {current.name} cannot change from {current.type} to {wanted.type}; add a new "
            "column",
            field=current.name,
        )
