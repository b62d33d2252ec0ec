"""How a table's rows are laid out in the lake: what they are partitioned and sorted by. Pure.

A partition is written as a column's name, or as a transform of a column: ``month(created_at)``,
``bucket(16,customer)``, ``truncate(4,code)``. The transforms are Iceberg's.
Law S3: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lakesync.core.column_types import precision_scale
from lakesync.errors import SchemaMismatch

PARTITION_WIDTH_MAX: Final = 1_000
"""Buckets of a table, or characters or numbers that `truncate` groups. Each partition of a batch is
a file of its own."""
_WRITTEN: Final = re.compile(r"(?:([a-z]+)\((?:([0-9]{1,5}),)?)?([A-Za-z_][A-Za-z0-9_]{0,63})\)?")
_TIMES: Final = frozenset({"date", "timestamp"})
_KEYS: Final = frozenset({"string", "integer", "decimal"})
_TYPES: Final = {
    "": _TIMES | _KEYS | {"number", "boolean"},
    "year": _TIMES,
    "month": _TIMES,
    "day": _TIMES,
    "hour": frozenset({"timestamp"}),
    "bucket": _TIMES | _KEYS,
    "truncate": _KEYS,
}
"""By transform: the types of columns that it accepts. Other types give no useful partitions, or are
not supported yet."""
_WITH_WIDTH: Final = frozenset({"bucket", "truncate"})


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One column that a table is partitioned by."""

    column: str
    transform: str = ""
    """One of Iceberg's transforms; empty: by day for timestamps, by value for all else."""
    width: int = 0
    """The number of buckets, or the length of the prefix; 0 for other transforms."""

    def __str__(self) -> str:
        """Return the field in the form that schemas use."""
        if not self.transform:
            return self.column
        return f"{self.transform}({f'{self.width},' if self.width else ''}{self.column})"

    def transform_of(self, kind: str) -> str:
        """Return Iceberg's transform for a column of a type; ``identity`` if there is none."""
        return self.transform or ("day" if kind == "timestamp" else "identity")


def partition_field(text: str) -> PartitionField:
    """Read a field in the form that schemas use.

    Raises:
        SchemaMismatch: it is neither a column's name nor a known transform of one.
    """
    match = _WRITTEN.fullmatch(text)
    name, width, column = match.groups() if match else (None, None, "")
    is_call = text.endswith(")")
    if match is None or is_call != (name is not None) or (name or "") not in _TYPES:
        raise SchemaMismatch(
            f"partition {text[:80]!r} is neither a column nor one of year, month, day and hour"
            " (column), bucket and truncate (number, column)",
            field="partition",
        )
    if (width is not None) != (name in _WITH_WIDTH) or not _is_width(width):
        raise SchemaMismatch(
            f"partition {text[:80]!r}: bucket and truncate take a number of 1 to"
            f" {PARTITION_WIDTH_MAX:,}, as in bucket(16,{column}); the others take none",
            field="partition",
        )
    return PartitionField(column, name or "", int(width or 0))


def check_partition_type(field: PartitionField, kind: str) -> None:
    """Refuse to partition by a column of an unsuitable type.

    Raises:
        SchemaMismatch: the type is unsuitable.
    """
    if _plain(kind) in _TYPES[field.transform]:
        return
    named = sorted(name for name, kinds in _TYPES.items() if name and _plain(kind) in kinds)
    instead = f"of it there are {', '.join(named)}" if named else "use another column"
    raise SchemaMismatch(
        f"column {field.column} is {kind}, by which no table is partitioned as {field}; {instead}",
        field="partition",
    )


def check_sort_type(column: str, kind: str) -> None:
    """Refuse to sort by a column whose values have no order, or whose type is not yet decided.

    Raises:
        SchemaMismatch: the type is one of these.
    """
    if _plain(kind) not in _TYPES[""]:
        raise SchemaMismatch(
            f"column {column} is {kind}, by which no table is sorted; use another column",
            field="sort",
        )


def _is_width(width: str | None) -> bool:
    return width is None or 1 <= int(width) <= PARTITION_WIDTH_MAX


def _plain(kind: str) -> str:
    return "decimal" if precision_scale(kind) is not None else kind
