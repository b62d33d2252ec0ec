"""What BigQuery says of a table or of a statement: columns with whole types, partitions, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.cloud.bigquery import SchemaField, Table

_NAMES: Final = {
    "INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT",
}  # fmt: skip
"""Types that the API spells otherwise than SQL does."""
PARTITION_TIME: Final = "_PARTITIONTIME"
"""The column of a table that is partitioned by the time of ingestion."""


class Field(NamedTuple):
    """A column."""

    name: str
    type: str
    """As SQL spells it, whole: ``NUMERIC(12, 2)``, ``ARRAY<STRUCT<x INT64>>``."""
    is_required: bool


class Look(NamedTuple):
    """What a table is."""

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    """Its primary key, if it declares one."""
    partition: str
    """The column by whose days, hours, months or years it is partitioned; empty if by none."""
    location: str


class Trial(NamedTuple):
    """What a statement would do."""

    kind: str
    """``SELECT``, ``DELETE``, ``SCRIPT`` …"""
    fields: tuple[Field, ...]
    bytes: int
    """How many it would read."""
    location: str


class ReadRows(NamedTuple):
    """Rows of a query."""

    rows: Sequence[tuple[Any, ...]]
    total: int
    """How many the query has."""


def look_of(table: Table) -> Look:
    """Return what a table is."""
    times, constraints = table.time_partitioning, table.table_constraints
    key = constraints.primary_key.columns if constraints and constraints.primary_key else ()
    partition = (times.field or PARTITION_TIME) if times else ""
    fields = tuple(map(field_of, table.schema))
    return Look(fields, tuple(key), partition, table.location or "")


def field_of(field: SchemaField) -> Field:
    """Return a column."""
    kind = _type_of(field)
    whole = f"ARRAY<{kind}>" if field.mode == "REPEATED" else kind
    return Field(field.name, whole, field.mode == "REQUIRED")


def _type_of(field: SchemaField) -> str:
    kind = _NAMES.get(field.field_type.upper(), field.field_type.upper())
    if kind == "STRUCT":
        parts = ", ".join(f"{part.name} {field_of(part).type}" for part in field.fields)
        return f"STRUCT<{parts}>"
    digits = [str(one) for one in (field.precision, field.scale) if one is not None]
    return f"{kind}({', '.join(digits)})" if digits else kind
