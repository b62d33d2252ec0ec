"""The wanted layout of a lake table, in names of the lake, and the form in which it is recorded.

It is stored in a property of the table. So a batch whose schema asks for the layout that the table
was last given changes nothing, and what somebody else added to the table's partitions stays. Law
L22: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.names import folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.claims import Batch
    from lakesync.materialise.columns import LakeColumn

LAYOUT: Final = "lakesync.layout"
"""The property of a table that records the layout that it was last given."""


class LayoutField(NamedTuple):
    """One field of a table's partition, in names of the lake."""

    column: str
    transform: str
    """Iceberg's name of it."""
    width: int

    @property
    def iceberg(self) -> str:
        """The transform as Iceberg writes it: ``bucket[16]``."""
        return f"{self.transform}[{self.width}]" if self.width else self.transform

    @property
    def name(self) -> str:
        """A name for the field that no column can have, now or later, as Iceberg requires.

        A table's own columns never begin with ``_``.
        """
        if self.transform == "identity":
            return self.column
        return f"_{self.column}_{self.transform}"


class TableLayout(NamedTuple):
    """The layout of a table's rows."""

    partition: tuple[LayoutField, ...] = ()
    sort: tuple[str, ...] = ()

    @property
    def recorded(self) -> str:
        """The text that the table stores."""
        return json.dumps({"partition": self.partition, "sort": self.sort}, separators=(",", ":"))


def recorded_layout(properties: Mapping[str, str]) -> TableLayout | None:
    """Return the layout that a table was last given; None if it never was."""
    text = properties.get(LAYOUT)
    if not text:
        return None
    body = json.loads(text)
    return TableLayout(tuple(LayoutField(*one) for one in body["partition"]), tuple(body["sort"]))


def wanted_layout(batches: Iterable[Batch], columns: Sequence[LakeColumn]) -> TableLayout | None:
    """Return the layout that the newest schema of some batches asks for; None if they have none.

    Args:
        batches: those that come next.
        columns: the table's, those that the batches bring among them.
    """
    schemas = [batch.schema for batch in batches if batch.schema is not None]
    newest = max(schemas, key=lambda schema: schema.version, default=None)
    if newest is None:
        return None
    by_written = {folded(column.written): column for column in columns}
    fields = []
    for field in newest.partition_fields:
        column = by_written[folded(field.column)]
        fields.append(LayoutField(column.name, field.transform_of(column.type), field.width))
    return TableLayout(tuple(fields), tuple(by_written[folded(one)].name for one in newest.sort))
