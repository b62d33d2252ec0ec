"""A live view shows what a merge of everything would give, whatever is merged already."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.column_types import value_of
from lakesync.core.delta import Op, checked_delta, make_delta
from lakesync.core.merge import as_read, fold, view
from lakesync.materialise.lake_rows import StagedDelta, change_row, row_of
from lakesync.materialise.lake_schema import CHANGES_TABLE, STATE_TABLE, LakeColumn
from lakesync.materialise.views import ViewedTable, views_of
from tests.support.strategies import row_delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta

AT = datetime(2026, 11, 24, tzinfo=UTC)
# Less than a counter apart, more than that, and as far as stamps reach.
STAMPS = (1, 2, 65_535, 65_537, stamp(1_700_000_000_000), STAMP_MAX)
COLUMNS = (
    LakeColumn("p", "json", "p"),
    LakeColumn("q", "number", "q"),
    LakeColumn("r", "boolean", "r"),
)
"""One that everything fits, and two in which most values are unfit: NULL, with a text."""
_ARROW = {"STRING": pa.string(), "TIMESTAMP": pa.timestamp("us", "UTC"), "BIGINT": pa.int64()}
_ARROW |= {"BOOLEAN": pa.bool_(), "INT": pa.int32(), "ARRAY<STRING>": pa.list_(pa.string())}
_ARROW |= {"MAP<STRING, STRING>": pa.map_(pa.string(), pa.string())}
_OWN = {"p": pa.string(), "q": pa.float64(), "r": pa.bool_()}


ROWS = 25


@st.composite
def written(draw: st.DrawFn) -> list[Delta]:
    """Deltas of many rows, in no order; a sound client writes one thing under one stamp."""
    seen: dict[tuple[str, int, str], Delta] = {}
    some = st.lists(row_delta, min_size=2, max_size=6)
    for place, deltas in enumerate(draw(st.lists(some, min_size=ROWS, max_size=ROWS))):
        row_id = f"r{place}'\"é"
        for delta in deltas:
            at = STAMPS[delta.hlc - 1]
            moved = checked_delta(delta.op, "todos", row_id, delta.client_id, at, delta.columns)
            seen.setdefault((row_id, at, delta.client_id), moved)
    return draw(st.permutations(list(seen.values())))


@pytest.mark.law("L20")
@given(
    deltas=written(),
    merged=st.integers(0, 4 * ROWS),
    unsaid=st.integers(0, ROWS),
    delete_wins=st.booleans(),
)
@settings(max_examples=25, phases=[Phase.explicit, Phase.generate], deadline=None)
@example(
    deltas=[make_delta(Op.INSERT, "todos", "a", {}, client_id="c", hlc=1)],
    merged=0,
    unsaid=0,
    delete_wins=False,
)
@example(
    deltas=[
        make_delta(Op.INSERT, "todos", "a", {"p": 1}, client_id="c", hlc=1),
        make_delta(Op.UPDATE, "todos", "a", {"p": None}, client_id="c", hlc=65_537),
        make_delta(Op.UPDATE, "todos", "a", {"p": 2}, client_id="d", hlc=2),
    ],
    merged=2,
    unsaid=0,
    delete_wins=False,
)
@example(
    deltas=[
        make_delta(Op.INSERT, "todos", "a", {"p": 1}, client_id="c", hlc=1),
        make_delta(Op.UPDATE, "todos", "a", {"p": 2}, client_id="c", hlc=65_537),
        make_delta(Op.DELETE, "todos", "a", client_id="d", hlc=2),
        make_delta(Op.UPDATE, "todos", "b", {"p": 2}, client_id="c", hlc=65_537),
        make_delta(Op.INSERT, "todos", "b", {"q": 2}, client_id="c", hlc=2),
    ],
    merged=2,
    unsaid=0,
    delete_wins=True,
)
def test_live_view_equals_the_rows_of_the_core_merge(
    deltas: list[Delta], merged: int, unsaid: int, *, delete_wins: bool
) -> None:
    """Some deltas are merged, of which the rows do not say the last ones."""
    part = deltas[:merged]
    database = database_of(part, deltas, max(len(part) - unsaid, 0), delete_wins=delete_wins)

    assert live_rows(database) == expected_rows(deltas, delete_wins=delete_wins)


def database_of(
    merged: Sequence[Delta], deltas: Sequence[Delta], commit: int, *, delete_wins: bool
) -> duckdb.DuckDBPyConnection:
    """Return a state table of some deltas, the changes table of all, and the view."""
    rows = [
        row_of(row_id, fold(of), COLUMNS, commit, AT, delete_wins=delete_wins)
        for row_id, of in by_row(merged).items()
    ]
    changes = [
        change_row(staged(place, delta), CHANGES_TABLE, COLUMNS, AT)
        for place, delta in enumerate(deltas, 1)
    ]
    database = duckdb.connect(config={"threads": 1})
    database.execute("CREATE SCHEMA db")
    for name, kind, some in (
        ("todos", STATE_TABLE, rows),
        ("todos__changes", CHANGES_TABLE, changes),
    ):
        declared = {n: _ARROW[t] for n, t in (*kind.head.items(), *kind.tail.items())}
        filled = pa.Table.from_pylist(some, schema=pa.schema(declared | _OWN))
        database.register("filled", filled)
        database.execute(f'CREATE TABLE db."{name}" AS FROM filled')
        database.unregister("filled")
    table = ViewedTable("db", "todos", STATE_TABLE, COLUMNS, "stack", {}, delete_wins)
    for made in views_of(table, "duckdb"):
        database.execute(made.statement("db", "duckdb"))
    return database


def staged(commit: int, delta: Delta) -> StagedDelta:
    own = {
        "_commit": commit, "_ordinal": 0, "_op": delta.op.name, "_id": delta.row_id,
        "_client_id": delta.client_id, "_hlc": delta.hlc, "_delta_id": delta.delta_id,
    }  # fmt: skip
    return StagedDelta(own, dict(delta.columns))


def by_row(deltas: Sequence[Delta]) -> dict[str, list[Delta]]:
    rows: dict[str, list[Delta]] = {}
    for delta in deltas:
        rows.setdefault(delta.row_id, []).append(delta)
    return rows


def expected_rows(deltas: Sequence[Delta], *, delete_wins: bool) -> dict[str, dict[str, Any]]:
    seen = {
        row_id: view(as_read(fold(some), delete_wins=delete_wins))
        for row_id, some in by_row(deltas).items()
    }
    return {
        row_id: {c.name: value_of(c.type, row[c.name]) if c.name in row else None for c in COLUMNS}
        for row_id, row in seen.items()
        if row is not None
    }


def live_rows(database: duckdb.DuckDBPyConnection) -> dict[str, dict[str, Any]]:
    rows = database.sql("FROM db.todos__live").to_arrow_table().to_pylist()
    assert len({row["_id"] for row in rows}) == len(rows), "one row for each id"
    return {row.pop("_id"): row for row in rows}
