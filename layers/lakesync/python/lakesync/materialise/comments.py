"""The catalogue's comments on LakeSync's own columns and tables, for people who query them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.materialise.shape import (
    CARRIED,
    CHANGES_TABLE,
    CLIENT,
    COMMIT_STAMP,
    EVENTS_TABLE,
    HLC,
    ID,
    IS_DELETED,
    STAMPS,
    STATE_TABLE,
    SYNCED_AT,
    TEXTS,
    UPDATED_AT,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.materialise.shape import Kind

_STATE: Final = {
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
_DELTA: Final = {
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
_BY_KIND: Final = {STATE_TABLE.name: _STATE, CHANGES_TABLE.name: _DELTA, EVENTS_TABLE.name: _DELTA}
_TABLES: Final = {
    STATE_TABLE.name: "The rows of {} as they are, deleted ones too: ask for NOT _is_deleted",
    CHANGES_TABLE.name: "Every change of {}, in the order of commits",
    EVENTS_TABLE.name: "The events of {}, one row for each",
}


def own_comments(kind: Kind) -> Mapping[str, str]:
    """Return the comment of each of LakeSync's own columns in the tables of a kind."""
    own = {**kind.head, **kind.tail}
    return {name: text for name, text in _BY_KIND[kind.name].items() if name in own}


def table_comment(kind: Kind, table: str) -> str:
    """Return the comment of a table, by its name on the wire; one line without quotes."""
    return _TABLES[kind.name].format(table)
