"""Compares a lake table's columns with the wanted ones, and gives the changes between them.

Two columns that are both text to Iceberg are distinguished by their LakeSync type and their name on
the wire. These are in a property of the table, by Iceberg's field id. A column's comment, as in
``number dueDate``, says the same to people. It may be edited, and counts only until the property is
written, right after the column was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.column_types import precision_scale, widens
from lakesync.core.names import (
    folded,
    is_identifier,
    lake_columns,
    lake_name_choices,
    staged_column,
)
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.claims import Batch

UNTYPED: Final = "json"
"""The type of columns that no schema declares: they hold JSON text."""
_TEXT: Final = frozenset({UNTYPED, "null"})
"""Types of columns whose values are all still available as JSON text."""


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """One column: its name in the lake, its type, and its name on the wire."""

    name: str
    type: str
    written: str
    description: str = field(default="", compare=False)
    """The description in its schema."""

    @property
    def staged(self) -> str:
        """Its name in the objects of batches."""
        return staged_column(self.written)

    @property
    def declared(self) -> str:
        """Its type and its name on the wire, in the form of a comment."""
        return f"{self.type} {self.written}"

    @property
    def comment(self) -> str:
        """The column's comment in the catalogue, for people."""
        return f"{self.description} ({self.declared})" if self.description else self.declared


class Evolution(NamedTuple):
    """The changes from a table's columns to the wanted ones, and the resulting columns."""

    added: tuple[LakeColumn, ...]
    widened: tuple[LakeColumn, ...]
    """Decimals with more digits: Iceberg changes the type without touching a row."""
    retyped: tuple[LakeColumn, ...]
    """Text that a schema now gives a type: each row is converted, in one commit."""
    columns: tuple[LakeColumn, ...]


def described(name: str, recorded: Sequence[str] | None, comment: str | None) -> LakeColumn | None:
    """Return a column of a table; None for a column that is not the table's own.

    Args:
        name: its name in the lake.
        recorded: its type and its name on the wire, from the table's property.
        comment: its comment in the catalogue.
    """
    if name[:1] == "_":
        return None
    if recorded:
        return LakeColumn(name, *recorded)
    text = comment or ""
    declared = text[text.rfind(" (") + 2 : -1] if text.endswith(")") and " (" in text else text
    type_name, _, written = declared.partition(" ")
    is_ours = is_identifier(written) and name in lake_name_choices(written, "c")
    is_ours = is_ours and _is_type(type_name)
    return LakeColumn(name, type_name, written) if is_ours else None


def is_own_comment(name: str, comment: str | None) -> bool:
    """Return whether LakeSync may change a column's comment: yes if empty, no if edited."""
    return not comment or described(name, None, comment) is not None


def _is_type(type_name: str) -> bool:
    try:
        precision_scale(type_name)
    except SchemaMismatch:
        return False
    return True


def wanted_columns(
    batches: Iterable[Batch], current: Iterable[LakeColumn] = ()
) -> tuple[LakeColumn, ...]:
    """Return the columns of a table by its newest schema; those in no schema are untyped.

    Args:
        batches: those that come next.
        current: existing columns, of this table and of the others for the same synced table: a
            column keeps its name.
    """
    batches = list(batches)
    schemas = [batch.schema for batch in batches if batch.schema is not None]
    newest = max(schemas, key=lambda schema: schema.version, default=None)
    declared = newest.columns if newest else ()
    types = {column.name: column.type for column in declared}
    said = {column.name: column.description for column in declared}
    written = sorted({name for batch in batches for name, _ in batch.columns} - types.keys())
    types |= dict.fromkeys(written, UNTYPED)
    taken = {folded(column.written): column.name for column in current}
    names = lake_columns(types, taken)
    return tuple(
        LakeColumn(names[name], kind, name, said.get(name, "")) for name, kind in types.items()
    )


def evolve(current: Sequence[LakeColumn], wanted: Iterable[LakeColumn]) -> Evolution:
    """Plan how a table gets its wanted columns. No column is ever removed.

    Raises:
        SchemaMismatch: a type would have to change in a way that the registry never allows.
    """
    by_name = {column.name: column for column in current}
    added, widened, retyped = [], [], []
    for column in wanted:
        present = by_name.get(column.name)
        if present is None:
            added.append(column)
        elif _gets_type(present.type, column.type):
            retyped.append(replace(present, type=column.type))
        elif present.type != column.type and _is_wider_decimal(present.type, column.type):
            widened.append(column)
        elif column.type not in _TEXT and not widens(column.type, present.type):
            raise SchemaMismatch(
                f"column {column.written} is {present.type} in the lake and cannot become"
                f" {column.type}; add a new column",
                field=column.written,
            )
    changed = {column.name: column for column in (*widened, *retyped)}
    columns = (*(changed.get(column.name, column) for column in current), *added)
    return Evolution(tuple(added), tuple(widened), tuple(retyped), columns)


def _gets_type(current: str, wanted: str) -> bool:
    if current == "null":
        return wanted != "null"
    return current == UNTYPED and wanted not in _TEXT


def _is_wider_decimal(current: str, wanted: str) -> bool:
    return precision_scale(current) is not None and widens(current, wanted)
