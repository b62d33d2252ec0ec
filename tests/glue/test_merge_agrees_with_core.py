"""Spark and `lakesync.core.merge` give the same rows, on the same generated deltas.

One Spark job folds many rows, so each example is a whole table: a few hundred deltas of some dozen
rows, dealt so that ties, deletes, late edits and exact repeats are common.
"""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.delta import Op, checked_delta, make_delta
from lakesync.core.merge import EMPTY, as_read, fold, view
from lakesync.core.schema import Column, TableSchema
from lakesync_spark.iceberg import state_merge
from tests.glue.support.lake import Lake
from tests.support.oracle import expected_row
from tests.support.strategies import json_values, row_delta

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

ROWS = 60
# Less than a counter apart, more than that, and as far as stamps reach.
STAMPS = (1, 2, 65_535, 65_537, stamp(1_700_000_000_000), STAMP_MAX)
_numbers = itertools.count()
# An example is a run of Spark: few of them, and none to make a failure smaller.
SLOW = settings(
    max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)


def moved(delta: Delta, row_id: str) -> Delta:
    """Return the same change of another row, at one of `STAMPS`: they keep their order."""
    at = STAMPS[delta.hlc - 1]
    return checked_delta(delta.op, delta.table, row_id, delta.client_id, at, delta.columns)


@st.composite
def tables(draw: st.DrawFn) -> list[Delta]:
    """Deltas of many rows, in no order."""
    some = st.lists(row_delta, min_size=1, max_size=8)
    rows = draw(st.lists(some, min_size=ROWS, max_size=ROWS))
    deltas = [moved(delta, f"r{place % 50}") for place, row in enumerate(rows) for delta in row]
    return draw(st.permutations(deltas))


def fresh(lake: Lake) -> Lake:
    """Return another gateway for each example: a fixture is made once for all of them."""
    gateway = f"{lake.gateway}-{next(_numbers)}"
    return Lake(lake.spark, lake.store, gateway, catalog=lake.catalog, opened=lake.opened)


def run_with(lake: Lake, per_row: float, broadcast_max: float) -> None:
    """Run with merges only, or with rewrites only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_merge, "REWRITE_DELTAS_PER_ROW", per_row)
        patch.setattr(state_merge, "BROADCAST_DELTAS_MAX", broadcast_max)
        lake.run()


def by_row(deltas: list[Delta]) -> dict[str, list[Delta]]:
    rows: dict[str, list[Delta]] = {}
    for delta in deltas:
        rows.setdefault(delta.row_id, []).append(delta)
    return rows


def states_of(deltas: list[Delta]) -> dict[str, RowState]:
    """Return the rows as the core has them."""
    return {row_id: fold(row) for row_id, row in by_row(deltas).items()}


FINAL = TableSchema("todos", tuple(Column(name, "json") for name in "pqr"), delete_wins=True)
"""Of a table in which deletes win."""


def agree(lake: Lake, deltas: list[Delta], *, delete_wins: bool = False) -> None:
    """Compare the state table with the core, and with the obvious computation."""
    states = {row_id: state for row_id, state in lake.states().items() if state != EMPTY}
    expected = {row_id: state for row_id, state in states_of(deltas).items() if state != EMPTY}
    assert states == expected
    seen = {
        row_id: view(as_read(state, delete_wins=delete_wins)) for row_id, state in states.items()
    }
    assert {row_id: row for row_id, row in seen.items() if row is not None} == {
        row_id: row
        for row_id, one in by_row(deltas).items()
        if (row := expected_row(one, delete_wins=delete_wins)) is not None
    }
    exists = {row_id for row_id, row in seen.items() if row is not None}
    assert set(lake.visible()) == exists


@pytest.mark.law("L1")
@pytest.mark.parametrize(
    ("per_row", "broadcast_max"),
    [(0, 0), (math.inf, math.inf), (math.inf, 0)],
    ids=["rewrites", "merges", "merges by a join of all rows"],
)
@given(
    deltas=tables(),
    seed=st.integers(0, 1000),
    cuts=st.integers(1, 3),
    schema=st.sampled_from([None, FINAL]),
)
@SLOW
def test_batches_in_any_order_give_the_rows_of_the_core_merge(
    lake: Lake,
    per_row: float,
    broadcast_max: float,
    deltas: list[Delta],
    seed: int,
    cuts: int,
    schema: TableSchema | None,
) -> None:
    """Some batches in one fold, others merged in later runs, and some deltas twice."""
    dealer = Random(seed)
    table = fresh(lake)
    again = dealer.sample(deltas, len(deltas) // 10)
    parts = [part for n in range(cuts) if (part := [*deltas, *again][n::cuts])]
    for place, part in enumerate(parts):
        dealer.shuffle(part)
        table.put(part, schema=schema)
        if place % 2 == 0:
            run_with(table, per_row, broadcast_max)
    run_with(table, per_row, broadcast_max)

    agree(table, deltas, delete_wins=schema is FINAL)
    assert len(table.changes()) == len(deltas) + len(again)


@pytest.mark.law("L1")
@given(values=st.lists(json_values, min_size=30, max_size=60))
@SLOW
def test_any_value_survives_byte_for_byte(lake: Lake, values: list[object]) -> None:
    table = fresh(lake)
    deltas = [
        make_delta(Op.INSERT, "todos", f"r{n}", {"v": value}, client_id="c", hlc=n + 1)
        for n, value in enumerate(values)
    ]
    table.put(deltas)
    table.run()

    agree(table, deltas)
    texts = {row_id: row["v"] for row_id, row in table.visible().items()}
    assert texts == {
        delta.row_id: None if delta.columns[0][1] == b"null" else delta.columns[0][1].decode()
        for delta in deltas
    }
