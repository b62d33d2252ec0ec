"""A schema in the spellings that its gateway uses already. Law S5: ``docs/spec/schema.md``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.core.names import first_spellings, folded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.schema import TableSchema


def spelled_as(schema: TableSchema, table: str, columns: Iterable[str]) -> TableSchema:
    """Return a schema with the spellings in use of its table and columns, wherever it names them.

    Args:
        schema: as an administrator wrote it.
        table: the table's spelling in use.
        columns: columns in use; others stay as they are.
    """
    spelled = first_spellings(columns)

    def in_use(name: str) -> str:
        return spelled.get(folded(name), name)

    external = schema.external_id_column
    return replace(
        schema,
        table=table,
        columns=tuple(replace(column, name=in_use(column.name)) for column in schema.columns),
        primary_key=tuple(map(in_use, schema.primary_key)),
        partition=tuple(
            str(replace(field, column=in_use(field.column))) for field in schema.partition_fields
        ),
        sort=tuple(map(in_use, schema.sort)),
        external_id_column=None if external is None else in_use(external),
    )


def respelled(wanted: TableSchema, saved: TableSchema) -> dict[str, str]:
    """Return the names of a schema that were saved in another spelling, with that spelling."""
    pairs = zip(wanted.columns, saved.columns, strict=False)
    names = [(wanted.table, saved.table), *((one.name, other.name) for one, other in pairs)]
    return {one: other for one, other in names if one != other and folded(one) == folded(other)}
