"""The three kinds of lake table: names of LakeSync's own columns, and how each is declared.

``_row_id`` and ``_deleted`` would be the natural names, and cannot be used: Iceberg reserves both
for its metadata columns, and Spark then refuses to read the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp

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
