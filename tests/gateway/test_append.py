"""Append tables: each event is taken once, in the order of its client's stamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.item_format import pack_mark, unpack_mark
from lakesync.core.merge import REMEMBERED_MAX, REMEMBERED_MIN, AppendMark, advanced
from lakesync.errors import LakeSyncError
from lakesync.log.lanes import Limits
from tests.support.builders import at_ms, insert, push, update
from tests.support.gateways import GATEWAY, GatewayWorld

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt


def schema(table: str) -> dict[str, object]:
    return {"table": table, "append": True, "columns": [{"name": "n", "type": "integer"}]}


def event(number: int, *, at: int | None = None, table: str = "events") -> Delta:
    return insert(f"e{number}", at=at_ms(number if at is None else at), table=table, n=number)


@pytest.fixture
def world(world: GatewayWorld) -> GatewayWorld:
    for table in ("events", "clicks"):
        world.admin.register_schema(GATEWAY, schema(table))
    return world


def codes(receipt: PushReceipt) -> list[str]:
    """Return what became of the deltas that were not plainly accepted."""
    return [outcome.error.code if outcome.error else "DUPLICATE" for outcome in receipt.outcomes]


def test_append_tables_keep_no_row_states(world: GatewayWorld) -> None:
    world.send(event(1), insert("r1", at=at_ms(2), n=1))

    assert world.buffer.rows(GATEWAY, [("events", "e1"), ("todos", "r1")]).keys() == {
        ("todos", "r1")
    }


@pytest.mark.law("A1")
@pytest.mark.parametrize("count", [1, 98, 5_000])
def test_repeated_push_of_events_is_all_duplicates_in_any_process(
    world: GatewayWorld, count: int
) -> None:
    events = [event(number) for number in range(count)]
    world.send(*events)

    for again in (world.pushes, world.pusher(1)):
        receipt = again.push(GATEWAY, push(*events))
        assert receipt.accepted == count
        assert codes(receipt) == ["DUPLICATE"] * count
    assert world.pulled(deltas_max=10_000) == events


@pytest.mark.law("A1")
def test_push_of_events_that_failed_midway_completes_when_repeated(world: GatewayWorld) -> None:
    tight = Limits(backpressure_bytes_max=200_000)
    world.pushes = world.pusher(limits=tight)
    events = [event(number) for number in range(8_000)]

    with pytest.raises(LakeSyncError):
        world.send(*events)
    taken = len(world.pulled(deltas_max=10_000))
    assert 0 < taken < 8_000
    receipt = world.pusher(1).push(GATEWAY, push(*events))

    assert receipt.accepted == 8_000
    assert codes(receipt) == ["DUPLICATE"] * taken
    assert world.pulled(deltas_max=10_000) == events


@pytest.mark.law("A2")
def test_event_stamped_before_an_accepted_one_is_refused_until_stamped_again(
    world: GatewayWorld,
) -> None:
    world.send(event(1), event(3))

    receipt = world.send(event(2), event(4))

    assert (receipt.accepted, codes(receipt)) == (1, ["OUT_OF_ORDER"])
    assert world.send(event(2, at=5)).accepted == 1
    assert len(world.pulled()) == 4


@pytest.mark.law("A2")
def test_events_of_one_push_are_committed_in_stamp_order_whatever_their_order_in_it(
    world: GatewayWorld,
) -> None:
    events = [event(number) for number in range(4_000)]

    receipt = world.send(*reversed(events))

    assert (receipt.accepted, receipt.outcomes) == (4_000, ())
    assert world.pulled(deltas_max=10_000) == events


@pytest.mark.law("A3")
def test_events_with_equal_stamps_are_each_accepted_once(world: GatewayWorld) -> None:
    events = [event(number, at=7) for number in range(3_000)]
    half = [events[0], events[1], events[0], *events[:1_500]]

    receipt = world.send(*half)
    assert codes(receipt) == ["DUPLICATE"] * 3
    assert world.send(*events).accepted == 3_000

    assert sorted(world.pulled(deltas_max=10_000)) == sorted(events)


@pytest.mark.law("A3")
def test_new_events_with_equal_stamps_are_refused_beyond_a_bound(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.core.merge.REMEMBERED_MAX", 10)
    events = [event(number, at=7) for number in range(12)]
    world.send(*events[:8])

    receipt = world.send(*events)

    assert codes(receipt) == ["DUPLICATE"] * 8 + ["OUT_OF_ORDER"] * 2
    assert REMEMBERED_MAX >= 2 * 10_000


def test_append_tables_of_one_shard_share_each_clients_stamp_order(world: GatewayWorld) -> None:
    first = [event(1), event(2, table="clicks"), event(3)]

    assert world.send(*first).accepted == 3
    receipt = world.send(event(9, at=1, table="clicks"))
    assert codes(receipt) == ["OUT_OF_ORDER"]
    assert len(world.pulled()) == 3


def test_stamp_order_of_events_is_checked_per_client(world: GatewayWorld) -> None:
    world.send(event(5))
    theirs = insert("e1", at=at_ms(1), table="events", client="other", n=1)

    assert world.send(theirs).accepted == 1
    assert len(world.pulled()) == 2


@pytest.mark.law("A4")
@pytest.mark.parametrize("shard", ["hot", "side"])
def test_repeated_push_of_events_is_recognised_after_the_table_moves_shard(
    world: GatewayWorld, shard: str
) -> None:
    events = [event(number) for number in range(300)]
    world.send(*events)
    moves = world.admin
    moves.place_table(GATEWAY, "events", shard)
    # Another table of the shard goes on, and its mark with it.
    world.send(event(400, table="clicks"))
    moves.place_table(GATEWAY, "events", "hot")

    for again in (world.pushes, world.pusher(1)):
        receipt = again.push(GATEWAY, push(*events[-60:]))
        assert codes(receipt) == ["DUPLICATE"] * 60
    assert len(world.pulled(deltas_max=1_000)) == 301
    later = [event(number) for number in range(500, 520)]
    assert world.send(*later).outcomes == ()


@pytest.mark.law("A5")
@pytest.mark.law("A1")
def test_accepted_event_stays_a_duplicate_after_rules_forbid_it(world: GatewayWorld) -> None:
    world.send(event(1), event(2))
    write = [{"column": "n", "op": "lt", "value": 0}]
    body = {"buckets": [{"name": "b", "tables": [], "filters": [], "write": write}]}
    world.admin.save_rules(GATEWAY, {"version": 1, **body})

    again = world.send(event(1), event(2), event(3))

    assert codes(again) == ["DUPLICATE", "DUPLICATE", "FORBIDDEN"]


def test_update_of_an_event_is_refused(world: GatewayWorld) -> None:
    receipt = world.send(update("e1", at=at_ms(1), table="events", n=2))

    assert codes(receipt) == ["VALIDATION_ERROR"]


@pytest.mark.law("A5")
def test_table_with_rows_cannot_become_an_append_table(world: GatewayWorld) -> None:
    world.send(event(1, table="visits"))
    with pytest.raises(LakeSyncError) as refused:
        world.admin.register_schema(GATEWAY, schema("visits"))

    assert (refused.value.code, refused.value.field) == ("CONFLICT", "append")
    merged = world.admin.register_schema(GATEWAY, schema("visits") | {"append": False})
    assert not merged.append


marks = st.builds(
    AppendMark,
    st.integers(0, (1 << 63) - 1),
    st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 48) - 1)))
    .map(sorted)
    .map(tuple),
    st.integers(0, (1 << 32) - 1),
)


@given(marks)
def test_append_mark_round_trips_through_its_stored_form(mark: AppendMark) -> None:
    assert unpack_mark(pack_mark(mark)) == mark


def test_append_mark_of_small_pushes_stays_within_one_write_unit() -> None:
    mark = AppendMark()
    for number in range(200):
        mark = advanced(mark, [event(number)], at_ms(number))

    assert len(mark.recent) == REMEMBERED_MIN
    assert len(pack_mark(mark)) < 1_000
