"""Staged batches without Spark: reads the deltas of a chain, and makes rows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.adapters.lake.typed_text import text_of, value_of
from lakesync.core.merge import EMPTY, RowState, join
from lakesync.core.values import NULL
from lakesync.errors import ValidationFailed
from lakesync.materialise.shape import CARRIED, ID, SYNCED_AT, TEXTS
from lakesync.materialise.state_rows import kept_in_view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from lakesync.core.clock import Stamp
    from lakesync.core.values import CanonicalJson
    from lakesync.materialise.chain import Link
    from lakesync.materialise.columns import LakeColumn
    from lakesync.materialise.shape import Kind
    from lakesync.materialise.storage import LakeStore

_ROW_ID: Final = "_row_id"


class StagedDelta(NamedTuple):
    """One delta, with the canonical text of each column that it carries, by lake names."""

    own: Mapping[str, Any]
    """LakeSync's columns, named as in the changes table."""
    texts: Mapping[str, CanonicalJson]

    @property
    def commit(self) -> Stamp:
        """The commit to which it belongs."""
        commit: int = self.own["_commit"]
        return commit


def read_deltas(
    store: LakeStore, links: Iterable[Link], columns: Sequence[LakeColumn]
) -> list[StagedDelta]:
    """Return the deltas of a chain in commit order; each commit once, however batches overlap.

    Raises:
        ValidationFailed: an object is gone.
    """
    from lakesync.adapters.lake.parquet import batch_table  # noqa: PLC0415 - few need pyarrow

    deltas: list[StagedDelta] = []
    for link in links:
        staged = store.read(link.batch.object_key)
        if staged is None:
            raise ValidationFailed(f"the object {link.batch.object_key} is gone", field="object")
        rows = batch_table(staged.body).to_pylist()
        deltas += [_delta(row, columns) for row in rows if row["_commit"] > link.above]
    return sorted(deltas, key=lambda one: (one.commit, one.own["_ordinal"]))


def folded(deltas: Iterable[StagedDelta]) -> dict[str, RowState]:
    """Return by row id the merged state of the deltas."""
    states: dict[str, RowState] = {}
    for delta in deltas:
        row_id = delta.own[ID]
        states[row_id] = join(states.get(row_id, EMPTY), _state_of(delta))
    return states


def change_row(
    delta: StagedDelta, kind: Kind, columns: Sequence[LakeColumn], at: datetime
) -> dict[str, Any]:
    """Return the row of a changes or events table for a delta."""
    carried = [column for column in columns if column.name in delta.texts]
    texts = {
        column.name: kept
        for column in carried
        if (text := delta.texts[column.name]) != NULL
        and (kept := kept_in_view(column.type, text)) is not None
    }
    tail = {
        CARRIED: [column.name for column in carried],
        SYNCED_AT: at,
        TEXTS: list(texts.items()) or None,
    }
    return {
        **{name: delta.own[name] for name in kind.head},
        **{column.name: value_of(column.type, delta.texts[column.name]) for column in carried},
        **{name: tail[name] for name in kind.tail},
    }


def carried(
    row: Mapping[str, Any], columns: Mapping[str, tuple[str, str]]
) -> tuple[tuple[str, CanonicalJson], ...]:
    """Return the columns that the delta in a row carried, by their names on the wire.

    Args:
        row: of a changes or events table.
        columns: type and name on the wire of each column, by its name in the lake.
    """
    texts = dict(row["_texts"] or ())
    carried = row.get("_columns")
    if carried is None:  # an event: a NULL without text was null, or was missing
        carried = [name for name in columns if row[name] is not None or name in texts]
    values = []
    for name in carried:
        kind, written = columns[name]
        if name in texts:
            value = texts[name].encode()
        else:
            value = NULL if row[name] is None else text_of(kind, row[name])
        values.append((written, value))
    return tuple(values)


def _delta(row: Mapping[str, Any], columns: Sequence[LakeColumn]) -> StagedDelta:
    names = ("_commit", "_ordinal", "_op", "_client_id", "_hlc", "_delta_id")
    own = {ID: row[_ROW_ID], **{name: row[name] for name in names}}
    texts = {
        column.name: text.encode()
        for column in columns
        if (text := row.get(column.staged)) is not None
    }
    return StagedDelta(own, texts)


def _state_of(delta: StagedDelta) -> RowState:
    """Return one delta as a state of its row, as `lakesync.core.merge.state_of` does."""
    op, hlc, client_id = (delta.own[name] for name in ("_op", "_hlc", "_client_id"))
    if op == "DELETE":
        return RowState(0, hlc, {})
    written = {name: (hlc, client_id, text) for name, text in delta.texts.items()}
    return RowState(hlc if op == "INSERT" else 0, 0, written)
