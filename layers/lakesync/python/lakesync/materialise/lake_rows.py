"""Rows of lake tables without Spark: of the deltas of a chain, and of states in the core's form.

Laws L1 and L2: ``docs/spec/lake.md``.

Rules of this module
    1. It writes the same columns and the same JSON for a row as `lakesync_spark.iceberg.state`:
       tests merge the same deltas with both.
    2. Which write wins is decided by `lakesync.core.merge`, not here.
    3. A text that another program might print with other digits is kept beside its value.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.clock import COUNTER_BITS, COUNTER_MAX
from lakesync.core.column_types import lost_text, typed_text_of, value_of
from lakesync.core.delta import NULL
from lakesync.core.merge import EMPTY, RowState, as_read, join, view
from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_schema import (
    ALIVE,
    CARRIED,
    CLIENT,
    COMMIT_STAMP,
    DELETED,
    HLC,
    ID,
    IS_DELETED,
    REST,
    STAMPS,
    SYNCED_AT,
    TEXTS,
    UPDATED_AT,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson
    from lakesync.materialise.lake_schema import Kind, LakeColumn
    from lakesync.materialise.work_queue import LakeStore, Link

# --- deltas of staged batches ---------------------------------------------------------------------


_ROW_ID: Final = "_row_id"


class StagedDelta(NamedTuple):
    """One delta, with the canonical text of each column that it carries, by lake names."""

    own: Mapping[str, Any]
    """LakeSync's columns, named as in the changes table."""
    texts: Mapping[str, CanonicalJson]

    @property
    def commit(self) -> Stamp:
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
    states: dict[str, RowState] = {}
    for delta in deltas:
        row_id = delta.own[ID]
        states[row_id] = join(states.get(row_id, EMPTY), _state_of(delta))
    return states


def change_row(
    delta: StagedDelta, kind: Kind, columns: Sequence[LakeColumn], at: datetime
) -> dict[str, Any]:
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
            value = NULL if row[name] is None else typed_text_of(kind, row[name])
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


# --- rows of the state table ----------------------------------------------------------------------


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT_DIGITS: Final = 15
"""Significant digits of a number up to which every program prints the same."""
_ZEROS: Final = re.compile(rb"^0+|0+$")


class Written(NamedTuple):
    """The stamp and the client of a write; no client where it is an insert's or a delete's."""

    hlc: Stamp
    client_id: str | None

    @property
    def rank(self) -> tuple[Stamp, bool, str]:
        """Its sort key: as in Spark, no client sorts first."""
        return self.hlc, self.client_id is not None, self.client_id or ""


def state_in(row: Mapping[str, Any], columns: Iterable[LakeColumn]) -> RowState:
    """Return the row state of a row of a state table, its registers by lake names."""
    said = json.loads(row[STAMPS] or "{}")
    texts = json.loads(row[TEXTS] or "{}")
    whole = Written(row[HLC], row[CLIENT])
    rest = _read(said.get(REST), whole, whole)
    registers = {}
    for column in columns:
        text = _text(column, row[column.name], texts.get(column.name))
        if text is not None:
            at = _read(said.get(column.name), whole, rest)
            registers[column.name] = (at.hlc, at.client_id or "", text)
    if row[IS_DELETED]:
        return RowState(0, said.get(DELETED, whole.hlc), registers)
    return RowState(said.get(ALIVE, rest.hlc), said.get(DELETED, 0), registers)


def row_of(
    row_id: str,
    state: RowState,
    columns: Iterable[LakeColumn],
    commit: Stamp,
    at: datetime,
    *,
    delete_wins: bool = False,
) -> dict[str, Any]:
    """Return the row of a state table that holds a row state.

    Args:
        delete_wins: how the table is read; see `lakesync.core.merge.as_read`.
    """
    written = {name: Written(*register[:2]) for name, register in state.columns.items()}
    own = Written(max(state.alive, state.deleted), None)
    greatest = max((own, *written.values()), key=lambda one: one.rank)
    least = min((greatest, *written.values()), key=lambda one: one.rank)
    is_deleted = view(as_read(state, delete_wins=delete_wins)) is None
    values, texts = {}, {}
    for column in columns:
        text = state.columns[column.name][2] if column.name in written else None
        values[column.name] = None if text is None else value_of(column.type, text)
        if text is not None and (kept := _kept(column.type, text)) is not None:
            texts[column.name] = kept
    return {
        ID: row_id,
        **values,
        UPDATED_AT: _EPOCH + timedelta(milliseconds=greatest.hlc >> COUNTER_BITS),
        COMMIT_STAMP: commit,
        SYNCED_AT: at,
        IS_DELETED: is_deleted,
        HLC: greatest.hlc,
        CLIENT: greatest.client_id,
        STAMPS: _stamps(state, written, greatest, least, is_deleted=is_deleted),
        TEXTS: _json(texts),
    }


def kept_in_view(kind: str, text: CanonicalJson) -> str | None:
    """Return the text if a value of the type does not reproduce it, wherever it is printed.

    Java does not always print a double with the fewest digits: a number with many digits is kept.
    """
    if kind == "number" and text != NULL:
        digits = re.sub(rb"[-.]", b"", text.partition(b"e")[0])
        if len(_ZEROS.sub(b"", digits)) > _EXACT_DIGITS:
            return text.decode()
    return lost_text(kind, text)


def _kept(kind: str, text: CanonicalJson) -> str | None:
    """A JSON null is kept too: NULL alone means that the column was never written."""
    return "null" if text == NULL else kept_in_view(kind, text)


def _text(column: LakeColumn, value: object, kept: str | None) -> CanonicalJson | None:
    if kept is not None:
        return kept.encode()
    return None if value is None else typed_text_of(column.type, value)


def _read(said: Mapping[str, Any] | None, whole: Written, default: Written) -> Written:
    if said is None:
        return default
    ago = (said.get("ago_ms", 0) << COUNTER_BITS) + said.get("ago_counter", 0)
    return Written(whole.hlc - ago, said.get("client_id", whole.client_id))


def _stamps(
    state: RowState,
    written: Mapping[str, Written],
    greatest: Written,
    least: Written,
    *,
    is_deleted: bool,
) -> str | None:
    fields: dict[str, Any] = {}
    if not is_deleted and state.alive != least.hlc:
        fields[ALIVE] = state.alive
    if state.deleted != (greatest.hlc if is_deleted else 0):
        fields[DELETED] = state.deleted
    if not fields and least == greatest:
        return None
    if least != greatest:
        fields[REST] = _said(least, greatest)
    fields |= {name: _said(at, greatest) for name, at in written.items() if at != least}
    return _json(fields)


def _said(at: Written, greatest: Written) -> dict[str, Any]:
    """Return the recorded fields of a stamp: only those that differ from the row's."""
    ago = greatest.hlc - at.hlc
    said = {"ago_ms": ago >> COUNTER_BITS, "ago_counter": ago & COUNTER_MAX}
    client = {} if at.client_id == greatest.client_id else {"client_id": at.client_id}
    return {name: value for name, value in said.items() if value} | client


def _json(fields: Mapping[str, Any]) -> str | None:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if fields else None
