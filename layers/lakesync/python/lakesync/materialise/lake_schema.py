"""How a lake table is declared: its kind, columns, layout and comments, and what changes them.

The three kinds have LakeSync's own columns. ``_row_id`` and ``_deleted`` would be the natural
names, and cannot be used: Iceberg reserves both for its metadata columns, and Spark then refuses to
read the table.

Two columns that are both text to Iceberg are distinguished by their LakeSync type and their name on
the wire. These are in a property of the table, by Iceberg's field id. A column's comment, as in
``number dueDate``, says the same to people. It may be edited, and counts only until the property is
written, right after the column was made.

The layout is stored in a property of the table too. So a batch whose schema asks for the layout
that the table was last given changes nothing, and what somebody else added to the table's
partitions stays. Law L22: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
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
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.deliveries import Batch

# --- kinds, and LakeSync's own columns ------------------------------------------------------------


# Properties of a table and of its snapshots.
COMMIT: Final = "lakesync.commit"
BATCH: Final = "lakesync.batch"
EPOCH: Final = "lakesync.epoch"
MARK_TAG: Final = "lakesync"
"""The tag of the snapshot that carries the mark."""
KIND: Final = "lakesync.kind"
STACK: Final = "lakesync.stack"
GATEWAY: Final = "lakesync.gateway"
WRITTEN: Final = "lakesync.table"
"""The name on the wire."""
COLUMNS: Final = "lakesync.columns"
"""Type and wire name of each column, as JSON by field id."""
DELETE_WINS: Final = "lakesync.delete-wins"
"""``true`` for a table that is declared so: see `lakesync.core.merge.as_read`."""
FOR_EVER_MS: Final = (1 << 63) - 1

ID: Final = "_id"
UPDATED_AT: Final = "_updated_at"
COMMIT_STAMP: Final = "_commit"
SYNCED_AT: Final = "_synced_at"
IS_DELETED: Final = "_is_deleted"
HLC: Final = "_hlc"
CLIENT: Final = "_client_id"
STAMPS: Final = "_stamps"
TEXTS: Final = "_texts"
CARRIED: Final = "_columns"

# Fields of a row in the JSON of `STAMPS`, besides columns: see `lakesync_spark.iceberg.state`.
ALIVE: Final = "_alive"
"""The latest insert that no delete covers; 0 if there is none."""
DELETED: Final = "_deleted"
"""The latest delete; 0 if there is none."""
REST: Final = "_rest"
"""The least stamp of all columns that are not named."""

# All of them are primitive: a nested column would disable Iceberg's vectorised reader.
_STATE: Final = {
    UPDATED_AT: "TIMESTAMP",
    COMMIT_STAMP: "BIGINT",
    SYNCED_AT: "TIMESTAMP",
    IS_DELETED: "BOOLEAN",
    HLC: "BIGINT",
    CLIENT: "STRING",
    STAMPS: "STRING",
    TEXTS: "STRING",
}
_DELTA: Final = {
    COMMIT_STAMP: "BIGINT",
    "_ordinal": "INT",
    "_op": "STRING",
    ID: "STRING",
    CLIENT: "STRING",
    HLC: "BIGINT",
    "_delta_id": "STRING",
}
_CHANGES_TAIL: Final = {
    CARRIED: "ARRAY<STRING>",
    SYNCED_AT: "TIMESTAMP",
    TEXTS: "MAP<STRING, STRING>",
}
_EVENTS_TAIL: Final = {SYNCED_AT: "TIMESTAMP", TEXTS: "MAP<STRING, STRING>"}


class BatchMark(NamedTuple):
    """The batches in a table, as its snapshots record them."""

    commit: Stamp = 0
    """Every commit up to this one is in the table, and none after it."""
    epoch: int = 0
    """The greatest epoch of a lease that wrote to it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties common to all tables of one kind."""

    name: str
    head: Mapping[str, str]
    """LakeSync's columns before the table's own, and their SQL types."""
    tail: Mapping[str, str]
    """LakeSync's columns after them."""
    may_partition: bool = True
    """Whether the schema's partition columns apply."""


STATE_TABLE: Final = Kind("state", {ID: "STRING"}, _STATE)
"""Current rows, tombstones included: one for each row id that was ever written."""
CHANGES_TABLE: Final = Kind("changes", _DELTA, _CHANGES_TAIL, may_partition=False)
"""Every delta, in commit order. Not partitioned: most deltas lack the partition's columns."""
EVENTS_TABLE: Final = Kind(
    "events", {name: kind for name, kind in _DELTA.items() if name != "_op"}, _EVENTS_TAIL
)
"""The rows of a table that is declared ``append``: one for each delta."""
KINDS: Final = {kind.name: kind for kind in (STATE_TABLE, CHANGES_TABLE, EVENTS_TABLE)}


def delete_wins(properties: Mapping[str, str]) -> bool:
    """Return by a table's properties whether no update restores a deleted row."""
    return properties.get(DELETE_WINS) == "true"


# --- synced columns -------------------------------------------------------------------------------


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
        return staged_column(self.written)

    @property
    def declared(self) -> str:
        """Its type and its name on the wire, in the form of a comment."""
        return f"{self.type} {self.written}"

    @property
    def comment(self) -> str:
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
        recorded: its type and its name on the wire, from the table's property.
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


# --- layout ---------------------------------------------------------------------------------------


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
        return json.dumps({"partition": self.partition, "sort": self.sort}, separators=(",", ":"))


def recorded_layout(properties: Mapping[str, str]) -> TableLayout | None:
    text = properties.get(LAYOUT)
    if not text:
        return None
    body = json.loads(text)
    return TableLayout(tuple(LayoutField(*one) for one in body["partition"]), tuple(body["sort"]))


def wanted_layout(batches: Iterable[Batch], columns: Sequence[LakeColumn]) -> TableLayout | None:
    """Return the layout that the newest schema of some batches asks for; None if they have none.

    Args:
        columns: the table's, those that the batches bring among them.
    """
    schemas = [batch.schema for batch in batches if batch.schema is not None]
    newest = max(schemas, key=lambda schema: schema.version, default=None)
    if newest is None:
        return None
    by_written = {folded(column.written): column for column in columns}
    fields = []
    for by in newest.partition_fields:
        column = by_written[folded(by.column)]
        fields.append(LayoutField(column.name, by.transform_of(column.type), by.width))
    return TableLayout(tuple(fields), tuple(by_written[folded(one)].name for one in newest.sort))


# --- comments -------------------------------------------------------------------------------------


_STATE_COMMENTS: Final = {
    ID: "The id of the row, one row for each",
    UPDATED_AT: "When the row was last changed, by the clock of the client that did",
    COMMIT_STAMP: "Grows with each merge that changed the row: read on from the greatest you know",
    SYNCED_AT: "When the last change reached this table, for people",
    IS_DELETED: "Whether the row was deleted: ask for NOT _is_deleted",
    HLC: "The greatest stamp of the row: milliseconds since 1970 times 65536, and a counter",
    CLIENT: "The client whose write has that stamp, if one has",
    STAMPS: "What differs of the stamps of single columns, as JSON. LakeSync's own",
    TEXTS: "Values that their column cannot give back as they were written, as JSON by column",
}
_DELTA_COMMENTS: Final = {
    ID: "The id of the row that was changed",
    COMMIT_STAMP: "The commit that accepted the change: they grow, read on from the greatest",
    "_ordinal": "The place of the change in its commit, from 0",
    "_op": "INSERT, UPDATE or DELETE",
    CLIENT: "The client that made the change",
    HLC: "When the client made it: milliseconds since 1970 times 65536, and a counter",
    "_delta_id": "The identity of the change: the SHA-256 of its content",
    CARRIED: "The columns that the change wrote; all others are NULL here",
    SYNCED_AT: "When the change reached this table, for people",
    TEXTS: "Values that their column cannot give back as they were written, by column",
}
_COMMENTS_BY_KIND: Final = {
    STATE_TABLE.name: _STATE_COMMENTS,
    CHANGES_TABLE.name: _DELTA_COMMENTS,
    EVENTS_TABLE.name: _DELTA_COMMENTS,
}
_TABLE_COMMENTS: Final = {
    STATE_TABLE.name: "The rows of {} as they are, deleted ones too: ask for NOT _is_deleted",
    CHANGES_TABLE.name: "Every change of {}, in the order of commits",
    EVENTS_TABLE.name: "The events of {}, one row for each",
}


def own_comments(kind: Kind) -> Mapping[str, str]:
    own = {**kind.head, **kind.tail}
    return {name: text for name, text in _COMMENTS_BY_KIND[kind.name].items() if name in own}


def table_comment(kind: Kind, table: str) -> str:
    """Return the comment of a table, by its name on the wire; one line without quotes."""
    return _TABLE_COMMENTS[kind.name].format(table)
