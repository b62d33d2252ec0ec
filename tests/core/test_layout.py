"""lakesync.core.layout: where rows are serialised."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.layout import DEFAULT_SHARD, LANES_MAX, SHARDS_MAX, Layout, Placement
from lakesync.errors import ValidationFailed
from tests.support.strategies import ids

placements = st.builds(Placement, st.sampled_from(["main", "hot", "cold"]), st.integers(1, 4))
layouts = st.dictionaries(st.sampled_from(["a", "b", "c"]), placements).map(
    lambda tables: Layout(MappingProxyType(tables))
)
tables = st.sampled_from(["a", "b", "c", "elsewhere"])


@given(layouts, tables, ids)
def test_a_row_goes_to_one_shard_and_readers_read_it(layout: Layout, table: str, row: str) -> None:
    shard = layout.shard_of(table, row)

    assert shard == layout.shard_of(table, row)
    assert shard in layout.shards()
    assert layout.laned(table) or shard == layout.shard_of(table, "another row")


@given(layouts, tables, placements)
def test_what_was_in_use_stays_readable_when_a_table_moves(
    layout: Layout, table: str, placement: Placement
) -> None:
    moved = layout.moved(table, placement)

    assert set(layout.shards()) <= set(moved.shards())
    assert moved.shard_of(table, "r1") in placement.shards()
    assert list(moved.shards()) == sorted(set(moved.shards()))


def test_lanes_are_chosen_by_the_row_and_all_are_used() -> None:
    layout = Layout(MappingProxyType({"hot": Placement("hot", 8)}))

    lanes = [layout.shard_of("hot", f"row {number}") for number in range(4_000)]

    assert set(lanes) == set(Placement("hot", 8).shards())
    assert max(map(lanes.count, set(lanes))) < 2 * 4_000 / 8


def test_the_lane_of_a_row_never_changes_from_one_release_to_the_next() -> None:
    layout = Layout(MappingProxyType({"hot": Placement("hot", 16)}))

    assert [layout.shard_of("hot", row) for row in ("r1", "ключ", "😀")] == [
        "hot.1",
        "hot.10",
        "hot.4",
    ]


def test_a_table_that_is_not_placed_goes_to_the_default_shard() -> None:
    assert Layout().shard_of("any", "row") == DEFAULT_SHARD
    assert Layout().shards() == (DEFAULT_SHARD,)


def test_a_lane_never_bears_the_name_of_another_shard() -> None:
    one_of_each = Layout(
        MappingProxyType({"a": Placement("hot"), "b": Placement("hot", 2), "c": Placement("hot2")})
    )

    assert one_of_each.shards() == ("hot", "hot.0", "hot.1", "hot2", "main")


@pytest.mark.parametrize(
    ("placed", "field"),
    [
        ({"shard": ""}, "shard"),
        ({"shard": "Hot"}, "shard"),
        ({"shard": "1st"}, "shard"),
        ({"shard": "a.0"}, "shard"),
        ({"shard": "s" * 33}, "shard"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": -1}, "lanes"),
        ({"lanes": LANES_MAX + 1}, "lanes"),
    ],
)
def test_a_placement_out_of_its_limits_cannot_be_made(placed: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Placement(**placed)

    assert refused.value.field == field


def test_one_transaction_can_reach_every_head() -> None:
    full = Layout(MappingProxyType({"a": Placement("a", 16), "b": Placement("b", 15)}))

    assert len(full.shards()) == SHARDS_MAX
    with pytest.raises(ValidationFailed, match="32 shards and lanes in all"):
        full.moved("c", Placement("c"))
