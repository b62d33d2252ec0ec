"""lakesync.core.layout: which shard a table is in, and which lanes of a shard are open."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.layout import (
    DEFAULT_SHARD,
    LANES_MAX,
    MAIN_LANE,
    ONE_LANE,
    RESERVED_SHARDS,
    SHARDS_MAX,
    LaneCount,
    Lanes,
    Layout,
    check_shard,
    lane_name,
    lane_number,
    lanes_from_text,
)
from lakesync.errors import ValidationFailed

shards = st.sampled_from(["main", "hot", "shard-orders", "c"])
placed = st.dictionaries(st.sampled_from(["a", "b", "c"]), shards)
layouts = placed.map(lambda tables: Layout(MappingProxyType(tables)))
tables = st.sampled_from(["a", "b", "c", "elsewhere"])


@st.composite
def changed(draw: st.DrawFn) -> Lanes:
    """Return lanes as changes of any kind leave them."""
    lanes = ONE_LANE
    for _ in range(draw(st.integers(0, 8))):
        what = draw(st.sampled_from(["open", "close", "pause"]))
        if what == "open":
            lanes = lanes.opening(draw(shards), draw(st.integers(0, LANES_MAX + 9)))
        elif what == "close":
            stay = draw(st.dictionaries(shards, st.integers(0, LANES_MAX)))
            lanes = lanes.closing({**stay, "main": 1}, draw(st.integers(0, 1 << 63)))
        else:
            lanes = lanes.paused(draw(st.integers(0, 1 << 44)))
    return lanes


# --- the shard of a table


@given(layouts, tables)
def test_every_table_is_in_one_of_the_layouts_shards(layout: Layout, table: str) -> None:
    assert layout.shard_of(table) in layout.shards()


@given(layouts, st.lists(st.tuples(tables, shards), max_size=6))
def test_former_shard_of_a_moved_table_stays_in_the_layout(
    layout: Layout, moves: list[tuple[str, str]]
) -> None:
    for table, shard in moves:
        moved = layout.moved(table, shard)

        assert set(layout.shards()) <= set(moved.shards())
        assert moved.shard_of(table) == shard
        assert layout.shard_of(table) in moved.former
        assert moved.moves == layout.moves + 1
        assert list(moved.shards()) == sorted(set(moved.shards()))
        layout = moved


def test_table_without_a_placement_is_in_the_default_shard() -> None:
    assert Layout().shard_of("any") == DEFAULT_SHARD
    assert Layout().shards() == (DEFAULT_SHARD,)


@pytest.mark.parametrize(
    "name", ["", "Hot", "1st", "-a", "a.0", "a b", "s" * 33, "a\n", "\u00e9", "a|b"]
)
def test_invalid_shard_name_is_refused(name: str) -> None:
    for place in (check_shard, lambda shard: Layout().moved("todos", shard)):
        with pytest.raises(ValidationFailed) as refused:
            place(name)
        assert refused.value.field == "shard"


@pytest.mark.parametrize("name", sorted(RESERVED_SHARDS))
def test_reserved_shard_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationFailed, match=f"{name}_tables"):
        check_shard(name)
    assert check_shard(f"{name}_tables") == f"{name}_tables"


@pytest.mark.parametrize("name", ["a", "main", "s" * 32, "a_1", "shard-orders", "s-"])
def test_valid_shard_name_is_accepted(name: str) -> None:
    assert check_shard(name) == name


def test_a_gateway_has_a_bounded_number_of_shards() -> None:
    layout = Layout()
    for number in range(SHARDS_MAX - 1):
        layout = layout.moved(f"t{number}", f"s{number}")
    assert len(layout.shards()) == SHARDS_MAX

    with pytest.raises(ValidationFailed, match=f"{SHARDS_MAX} shards"):
        layout.moved("another", "another")
    assert layout.moved("another", "s0").shard_of("another") == "s0"


# --- the lanes of a shard


@given(st.integers(0, LANES_MAX - 1), shards)
def test_first_lane_is_named_after_its_shard_and_others_are_numbered(
    number: int, shard: str
) -> None:
    lane = lane_name(shard, number)

    assert lane_number(lane) == number
    assert lane.partition(".")[0] == shard
    assert (lane == shard) == (number == 0)
    assert lane_name(DEFAULT_SHARD, 0) == MAIN_LANE


def test_lanes_of_different_shards_have_distinct_names() -> None:
    names = {lane_name(shard, number) for shard in ("h", "h1") for number in range(LANES_MAX)}

    assert len(names) == 2 * LANES_MAX


@pytest.mark.law("B7")
@given(changed())
def test_main_lane_is_always_open_and_first(lanes: Lanes) -> None:
    assert lanes.open()[0] == lanes.used()[0] == MAIN_LANE
    assert lanes.is_open(MAIN_LANE)


@pytest.mark.law("B7")
@given(changed())
def test_every_open_lane_was_used_and_only_listed_lanes_are_open(lanes: Lanes) -> None:
    assert set(lanes.open()) <= set(lanes.used())
    assert len(set(lanes.used())) == len(lanes.used())
    assert {lane for lane in lanes.used() if lanes.is_open(lane)} == set(lanes.open())
    for shard in ("main", "hot", "cold", "never"):
        count = lanes.of(shard)
        assert 0 <= count.open <= count.used <= LANES_MAX
        assert not lanes.is_open(lane_name(shard, count.open))


@pytest.mark.law("B7")
@given(changed(), shards, st.integers(0, LANES_MAX + 9))
def test_opening_lanes_closes_none(lanes: Lanes, shard: str, count: int) -> None:
    opened = lanes.opening(shard, count)

    assert set(lanes.open()) <= set(opened.open())
    assert set(lanes.used()) <= set(opened.used())
    assert opened.of(shard).open == max(lanes.of(shard).open, min(count, LANES_MAX))
    assert (opened.quiet, opened.changes) == (lanes.quiet, lanes.changes + 1)


@pytest.mark.law("B7")
@given(changed(), st.dictionaries(shards, st.integers(0, LANES_MAX)), st.integers(0, 1 << 63))
def test_closing_lanes_opens_none_and_keeps_used_lanes(
    lanes: Lanes, stay: dict[str, int], quiet: int
) -> None:
    closed = lanes.closing(stay, quiet)

    assert set(closed.open()) <= set(lanes.open())
    assert closed.used() == lanes.used()
    assert closed.quiet == max(lanes.quiet, quiet)
    assert closed.changes == lanes.changes + 1
    for shard, count in lanes.counts.items():
        assert closed.of(shard).open == min(count.open, stay.get(shard, count.open))


@pytest.mark.law("B7")
@given(changed())
def test_lanes_round_trip_through_their_stored_text(lanes: Lanes) -> None:
    assert lanes_from_text(lanes.to_text()) == lanes
    assert bool(lanes.to_text()) == bool(lanes.changes)


def test_lanes_differ_after_two_changes_that_undo_each_other() -> None:
    """Whoever changes lanes names those it has read, and must not take later ones for them."""
    again = ONE_LANE.opening("main", 2).closing({"main": 1}, 0).opening("main", 2)

    assert again.counts == ONE_LANE.opening("main", 2).counts == {"main": LaneCount(2, 2)}
    assert again != ONE_LANE.opening("main", 2)
