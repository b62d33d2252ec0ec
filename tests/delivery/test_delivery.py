"""Destinations hold what they should of a gateway, whatever dies, is away or is paused."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakesync.core.deliveries import DeliveryPlace
from lakesync.delivery.table_delivery import Filling
from lakesync.errors import AdapterRefused, AdapterUnreachable, Contention, NotFound
from tests.delivery.world import World
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life, unflushed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.deliveries import FillClaim
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError

MINE = [{"name": "mine", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 10}]}]


def some(count: int, first: int = 0, table: str = "todos") -> list[Delta]:
    """Return inserts of rows, one after another."""
    return [
        insert(f"r{number}", at=at_ms(number), table=table, n=number, title=f"t{number}")
        for number in range(first, first + count)
    ]


@pytest.mark.law("D7")
def test_each_destination_has_its_own_claims_for_its_tables() -> None:
    world = World()
    world.declare("first", tables=["todos"])
    world.declare("second", tables=["todos", "notes"])
    world.deliver()
    world.push(*some(2), *some(1, table="notes"))
    world.flush()

    claims = [key.split("/")[2:4] for key in world.objects.list_objects(f"deliveries/{GATEWAY}/")]
    assert claims == [["first", "todos"], ["second", "notes"], ["second", "todos"]]
    assert len(world.objects.list_objects(f"claims/{GATEWAY}/")) == 2
    assert len(world.objects.list_objects("staging/")) == 2
    assert (len(world.lake.sent), len(world.deliveries.sent)) == (1, 3)


@pytest.mark.law("D7", "D9")
def test_batch_delivered_to_one_destination_remains_for_another() -> None:
    world = World()
    for name in ("first", "second"):
        world.declare(name)
    world.deliver()
    world.databases["second"].is_away = True
    world.push(*some(3))
    world.flush()
    failures = world.deliver()

    assert {type(error) for error in failures} == {AdapterUnreachable}
    world.check(name="first")
    assert len(world.waiting("second")) == 1
    assert len(world.objects.list_objects("staging/")) == 1
    assert len(world.objects.list_objects("claims/")) == 1
    world.databases["second"].is_away = False
    world.sweep()
    world.check(name="second")


@pytest.mark.law("D9")
def test_database_that_cannot_be_opened_is_noted_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.declare()
    world.deliver()
    world.push(*some(3))
    world.flush()
    refused = AdapterRefused("the secret cannot be read")
    with monkeypatch.context() as patch:
        patch.setattr(world, "databases", Unopened(refused))
        assert world.deliver() == [refused]
    noted = world.buffer.delivery_states(GATEWAY, "warehouse")["todos"]
    assert noted.error == "ADAPTER_REFUSED: the secret cannot be read"

    world.sweep()
    world.check()
    assert world.buffer.delivery_states(GATEWAY, "warehouse")["todos"].error == ""


class Unopened:
    """Databases none of which can be opened."""

    def __init__(self, error: LakeSyncError) -> None:
        self._error = error

    def __getitem__(self, secret: str) -> Any:
        raise self._error


@pytest.mark.law("D9")
def test_paused_destination_delays_no_push_or_flush() -> None:
    world = World()
    world.declare()
    world.deliver()
    world.destinations().set_paused(GATEWAY, "warehouse", paused=True)
    for number in range(5):
        world.push(*some(1, number))
        world.flush()
        world.deliver()

    assert unflushed(world.buffer, GATEWAY) == 0
    assert len(world.waiting()) == 5
    assert world.rows() == {}
    world.sweep()
    assert len(world.waiting()) == 5, "a sweep leaves what is paused"
    world.destinations().set_paused(GATEWAY, "warehouse", paused=False)
    world.deliver()
    world.check()


@pytest.mark.law("D8")
def test_a_new_destination_is_filled_and_follows() -> None:
    world = World()
    world.push(*some(5), delete("r1", at=at_ms(50)))
    world.flush()
    world.push(*some(2, 5))
    world.declare()
    world.deliver()
    world.push(update("r2", at=at_ms(60), title="changed"))
    world.flush()
    world.deliver()

    world.check()
    assert world.rows()["r2"] == {"n": 2, "title": "changed"}
    assert "r1" not in world.rows()


@pytest.mark.law("D8")
def test_a_flush_that_began_before_the_declaration_leaves_no_gap() -> None:
    """Its range is announced to others alone; the filling ends where it does."""
    world = World()
    world.push(*some(3))
    for writes in range(1, 40):
        other = World()
        other.push(*some(3), *some(2, table="notes"))
        with suppress(Killed):
            other.flush(Life(writes))
        other.declare()
        other.push(*some(2, 10))
        other.flush()
        other.deliver()
        other.check("todos", "notes")


@pytest.mark.law("D8", "D9")
@pytest.mark.parametrize("last_happens", [False, True])
def test_delivery_killed_anywhere_is_completed_by_the_next_one(*, last_happens: bool) -> None:
    for writes in range(60):
        world = World()
        world.push(*some(4), *some(2, table="notes"))
        world.flush()
        life = Life(writes, last_happens=last_happens)
        with suppress(Killed):
            world.declare(life=life, buckets=MINE)
            world.push(update("r3", at=at_ms(70), n=50), update("r2", at=at_ms(71), title="new"))
            world.flush(life)
            world.deliver(life)
        world.deliveries.sent.clear()  # every announcement is lost
        with suppress(Killed, Contention):
            world.declare(buckets=MINE)  # whoever had no answer asks again
        world.flush()
        world.sweep()
        world.sweep()
        world.check("todos", "notes")


@pytest.mark.law("D9")
def test_sweep_announces_claims_whose_announcement_was_lost() -> None:
    world = World()
    world.declare()
    world.deliver()
    world.push(*some(3))
    world.flush()
    world.deliveries.sent.clear()
    lags = world.deliverer().sweep()
    world.deliver()

    world.check()
    [lag] = lags
    assert (lag.gateway, lag.destination, lag.claims, lag.paused) == (
        GATEWAY, "warehouse", 1, False,
    )  # fmt: skip


@pytest.mark.law("D10")
def test_row_outside_the_filter_is_removed_and_returns_complete() -> None:
    world = World()
    world.declare(buckets=MINE)
    world.deliver()
    steps: list[list[Delta]] = [
        [*some(2), insert("far", at=at_ms(1), n=99, title="out of sight")],
        [update("r1", at=at_ms(10), n=11)],
        [update("r1", at=at_ms(11), title="while it was away"), update("far", at=at_ms(12), n=3)],
        [update("r1", at=at_ms(13), n=1)],
        [delete("r0", at=at_ms(14)), delete("far", at=at_ms(15))],
    ]
    seen = []
    for step in steps:
        world.push(*step)
        world.flush()
        world.deliver()
        world.check()
        seen.append(sorted(world.rows()))

    assert seen == [["r0", "r1"], ["r0"], ["far", "r0"], ["far", "r0", "r1"], ["r1"]]
    assert world.rows()["r1"] == {"n": 1, "title": "while it was away"}


@pytest.mark.law("D10")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "update", "delete"]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(5, 14),
            st.sampled_from(["push", "flush", "deliver"]),
        ),
        max_size=25,
    )
)
def test_destination_holds_the_filtered_rows_after_any_deliveries(
    steps: list[tuple[str, str, int, str]],
) -> None:
    world = World()
    world.declare(buckets=MINE)
    for at, (op, row, number, then) in enumerate(steps, 1):
        make: dict[str, Callable[[], Delta]] = {
            "insert": lambda: insert(row, at=at_ms(at), n=number),  # noqa: B023 - called at once
            "update": lambda: update(row, at=at_ms(at), n=number, title=str(at)),  # noqa: B023
            "delete": lambda: delete(row, at=at_ms(at)),  # noqa: B023
        }
        world.push(make[op]())
        if then != "push":
            world.flush()
        if then == "deliver":
            world.deliver(steps=3)
    world.flush()
    world.deliver()
    world.check()


@pytest.mark.law("D10")
def test_event_table_rows_are_filtered_individually() -> None:
    world = World()
    world.admin.register_schema(GATEWAY, READINGS)
    world.push(insert("before", at=at_ms(1), table="readings", n=1))
    world.declare(buckets=MINE)
    world.deliver()
    world.flush()
    world.push(*(insert(f"e{n}", at=at_ms(10 + n), table="readings", n=n) for n in (1, 9, 50)))
    world.flush()
    world.deliver()

    assert world.waiting() == []
    assert sorted(world.rows("readings")) == ["before", "e1", "e9"]


READINGS = {
    "table": "readings",
    "append": True,
    "columns": [{"name": "n", "type": "integer"}, {"name": "Extra", "type": "integer"}],
}


def with_events() -> World:
    """A gateway whose events were flushed three times, and are in the lake already."""
    world = World()
    world.admin.register_schema(GATEWAY, READINGS)
    for number in range(3):
        world.push(insert(f"e{number}", at=at_ms(number), table="readings", n=number, Extra=1))
        world.flush()
    for key in world.objects.list_objects("claims/"):
        world.objects.delete_object(key)
    return world


@pytest.mark.law("D8")
def test_event_table_is_filled_from_the_batches_that_are_kept() -> None:
    world = with_events()
    world.declare(buckets=MINE)
    world.deliver()
    assert world.rows("readings") == {f"e{n}": {"n": n, "Extra": 1} for n in range(3)}
    oldest = world.objects.list_objects("staging/")[0]
    world.objects.delete_object(oldest)
    world.declare("second")
    world.deliver()
    world.push(insert("e3", at=at_ms(3), table="readings", n=3))
    world.flush()
    world.deliver()

    assert sorted(world.rows("readings")) == ["e0", "e1", "e2", "e3"]
    assert sorted(world.rows("readings", "second")) == ["e1", "e2", "e3"]
    world.destinations().backfill(GATEWAY, "second")
    world.deliver(steps=1)
    assert sorted(world.rows("readings", "second")) == ["e1", "e2", "e3"]
    assert world.waiting() == world.waiting("second") == []


@pytest.mark.law("D8", "D21")
def test_json_batches_are_delivered_and_fill_an_event_table_like_parquet() -> None:
    world = with_events()
    world.admin.save_flushing(GATEWAY, {"flushFormat": "json"})
    world.declare()
    world.deliver()
    world.push(insert("e3", at=at_ms(3), table="readings", n=3), *some(3))
    world.flush()
    world.deliver()
    world.declare("second")
    world.deliver()

    keys = world.objects.list_objects("staging/")
    assert {key.rpartition(".")[2] for key in keys} == {"json", "parquet"}
    world.check(name="warehouse")
    for name in ("warehouse", "second"):
        assert sorted(world.rows("readings", name)) == ["e0", "e1", "e2", "e3"]
    assert world.waiting() == world.waiting("second") == []


@pytest.mark.law("D8")
def test_filling_with_events_killed_anywhere_is_completed() -> None:
    for writes in range(30):
        world = with_events()
        life = Life(writes, last_happens=bool(writes % 2))
        with suppress(Killed):
            world.declare(life=life)
            world.push(insert("e3", at=at_ms(3), table="readings", n=3))
            world.flush(life)
            world.deliver(life)
        with suppress(Killed):
            world.declare()
        world.flush()
        world.sweep()
        world.sweep()
        assert world.waiting() == []
        expected = {"e0", "e1", "e2"} | ({"e3"} if world.pushed("e3") else set())
        assert set(world.rows("readings")) == expected


@pytest.mark.law("D8", "D10")
def test_delivery_waits_for_rows_that_are_not_visible_yet() -> None:
    """While a commit happens its log entry may show before a row of it does."""
    world = World()
    world.push(*some(2))
    world.flush()
    place = DeliveryPlace(GATEWAY, "warehouse", "todos")
    world.declare(buckets=MINE)
    world.deliverer().deliver(DeliveryPlace(GATEWAY, "warehouse"))
    with pytest.raises(Contention) as early:
        world.deliverer().deliver(place)
    assert 0 < early.value.retry_after_s <= 60
    assert world.rows() == {}
    world.deliver()
    before = world.buffer.rows(GATEWAY, [("todos", "r0")])
    world.push(update("r0", at=at_ms(50), n=50))
    world.flush()
    with patch.object(world.buffer, "rows", return_value=before), pytest.raises(Contention):
        world.deliverer().deliver(place)
    assert world.rows()["r0"]["n"] == 0
    [report] = world.destinations().reports(GATEWAY)
    assert (report.state, report.waiting) == ("behind", 1)

    world.deliver()
    world.check()
    assert "r0" not in world.rows()


@pytest.mark.law("D8")
def test_batch_with_a_missing_object_is_replaced_by_a_filling() -> None:
    world = World()
    world.declare()
    world.deliver()
    world.destinations().set_paused(GATEWAY, "warehouse", paused=True)
    for number in range(3):
        world.push(*some(1, number), delete("r0", at=at_ms(90 + number)))
        world.flush()
    for key in world.objects.list_objects("staging/")[:2]:
        world.objects.delete_object(key)
    world.destinations().set_paused(GATEWAY, "warehouse", paused=False)
    world.deliver()

    world.check()


@pytest.mark.law("D8")
def test_batch_with_a_damaged_page_is_replaced_by_a_filling() -> None:
    world = World()
    world.declare()
    world.deliver()
    world.push(*some(40))
    world.flush()
    [key] = world.objects.list_objects("staging/")
    body = bytearray(world.objects.get_object(key))
    body[4:24] = bytes(20)  # the first page; what Parquet says at its end stays
    world.objects.put_object(key, bytes(body), "application/octet-stream")
    world.deliver()

    world.check()


@pytest.mark.law("D8")
def test_backfill_restores_removed_rows() -> None:
    world = World()
    world.declare()
    world.push(*some(3))
    world.flush()
    world.deliver()
    del world.databases["warehouse"]._tables["todos"].rows["r1"]
    world.destinations().backfill(GATEWAY, "warehouse")
    world.push(*some(2, 3))
    world.flush()
    world.deliver()

    world.check()


@pytest.mark.law("D8")
def test_backfill_requested_during_a_filling_is_done_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.push(*some(3))
    world.flush()
    world.declare()
    put, requests = Filling._put, ["one"]

    def interrupted(self: Filling, claim: FillClaim) -> FillClaim:
        after = put(self, claim)
        if requests:
            requests.pop()
            del world.databases["warehouse"]._tables["todos"].rows["r1"]
            world.destinations().backfill(GATEWAY, "warehouse")
        return after

    monkeypatch.setattr(Filling, "_put", interrupted)
    world.deliver()

    assert not requests
    world.check()


@pytest.mark.law("D11")
def test_destination_can_be_removed_midway_and_declared_differently_later() -> None:
    world = World()
    world.push(*some(20))
    world.flush()
    world.declare()
    world.deliverer().deliver(DeliveryPlace(GATEWAY, "warehouse"))
    world.destinations().remove(GATEWAY, "warehouse")
    world.push(update("r1", at=at_ms(70), n=70))
    world.flush()
    world.deliver()

    assert world.waiting() == []
    assert world.buffer.delivery_states(GATEWAY, "warehouse") == {}
    with pytest.raises(Contention) as early:
        world.declare(buckets=MINE)
    world.time.now_ms += early.value.retry_after_s * 1000
    world.declare(buckets=MINE)
    world.deliver()
    world.check()
    assert sorted(world.rows()) == sorted(f"r{number}" for number in range(10) if number != 1)


@pytest.mark.law("D11")
def test_delivery_stops_before_its_next_step_when_its_destination_is_removed() -> None:
    world = World()
    world.push(*some(3))
    world.flush()
    world.declare()
    world.deliverer().deliver(DeliveryPlace(GATEWAY, "warehouse"))

    def removed() -> bool:
        world.destinations().remove(GATEWAY, "warehouse")
        return True

    with pytest.raises(Contention):
        world.deliverer().deliver(DeliveryPlace(GATEWAY, "warehouse", "todos"), removed)
    assert world.rows() == {}
    world.deliver()
    assert world.waiting() == []


@pytest.mark.law("D8")
def test_repeated_declaration_requests_a_filling_that_was_never_requested() -> None:
    """A delivery of something else meanwhile is no filling."""
    world = World()
    world.push(*some(3), *some(2, table="notes"))
    world.flush()
    with suppress(Killed):
        world.declare(life=Life(1))  # it is saved, and nobody is told
    world.push(update("r1", at=at_ms(50), table="notes", title="new"))
    world.flush()
    world.deliver()
    assert world.rows() == {}
    world.declare()
    world.deliver()
    world.check("todos", "notes")

    world.declare()
    assert world.waiting() == [], "it is filled once"


@pytest.mark.law("D10")
def test_filling_removes_events_that_only_an_earlier_filter_passed() -> None:
    world = with_events()
    world.declare()
    world.deliver()
    assert len(world.rows("readings")) == 3
    world.destinations().remove(GATEWAY, "warehouse")
    world.deliver()
    world.time.now_ms += 360_000
    few = [{"name": "few", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 1}]}]
    world.declare(buckets=few)
    world.deliver()

    assert sorted(world.rows("readings")) == ["e0"]


def test_changes_to_an_unknown_destination_raise_not_found() -> None:
    destinations = World().destinations()
    for change in (
        lambda: destinations.set_paused(GATEWAY, "nowhere", paused=True),
        lambda: destinations.backfill(GATEWAY, "nowhere"),
        lambda: destinations.retry(GATEWAY, "nowhere"),
        lambda: destinations.remove(GATEWAY, "nowhere"),
    ):
        with pytest.raises(NotFound):
            change()


def test_destination_report_shows_its_state_waiting_claims_and_lag() -> None:
    world = World()
    world.declare()
    assert [report.state for report in world.destinations().reports(GATEWAY)] == ["filling"]
    world.deliver()
    world.push(*some(2))
    world.flush()
    world.time.now_ms += 60_000
    [behind] = world.destinations().reports(GATEWAY)
    world.databases["warehouse"].is_away = True
    world.deliver()
    [failing] = world.destinations().reports(GATEWAY)
    world.databases["warehouse"].is_away = False
    world.sweep()
    [current] = world.destinations().reports(GATEWAY)

    assert (behind.state, behind.waiting, behind.lag_ms) == ("behind", 1, 60_000)
    assert failing.state == "failing"
    assert "ADAPTER_UNREACHABLE" in failing.tables["todos"].error
    assert (current.state, current.waiting, current.lag_ms) == ("current", 0, 0)


# --- tables in which deletes win ------------------------------------------------------------------


FINAL = {
    "table": "todos",
    "columns": [{"name": "n", "type": "integer"}, {"name": "title", "type": "string"}],
    "deleteWins": True,
}


@st.composite
def final_edits(draw: st.DrawFn) -> list[Delta]:
    """Edits of a few rows, of which most are deleted and inserted again now and then."""
    columns: list[dict[str, Any]] = [{"n": 1}, {"n": 20}, {"title": "a"}, {"n": 3, "title": "b"}]
    drawn = st.tuples(
        st.sampled_from(["insert", "update", "update", "delete"]),
        st.sampled_from(["r1", "r2"]),
        st.integers(1, 9),
        st.sampled_from(columns),
    )
    return [
        delete(row, at=at_ms(ms))
        if op == "delete"
        else (insert if op == "insert" else update)(row, at=at_ms(ms), **values)
        for op, row, ms, values in draw(st.lists(drawn, min_size=1, max_size=10))
    ]


@pytest.mark.law("D16")
@given(
    made=final_edits(),
    cuts=st.lists(st.integers(0, 10), max_size=2),
    declared=st.integers(0, 10),
    shape=st.sampled_from(["all", "filtered", "mapped"]),
)
@example(
    made=[
        insert(at=at_ms(1), n=1, title="a"),
        delete(at=at_ms(2)),
        update(at=at_ms(3), title="late"),
        insert("r2", at=at_ms(3), n=1),
        insert(at=at_ms(4), n=2),
    ],
    cuts=[3],
    declared=4,
    shape="all",
)
@settings(deadline=None)
def test_delete_wins_destination_rows_equal_the_gateway_rows(
    made: list[Delta], cuts: list[int], declared: int, shape: str
) -> None:
    """Delivered delta by delta, filled, filtered, and with columns left out."""
    world = World()
    world.admin.register_schema(GATEWAY, FINAL)
    bodies: dict[str, dict[str, Any]] = {
        "all": {},
        "filtered": {"buckets": MINE},
        "mapped": {"map": {"todos": {"drop": ["n"], "constant": {"from": "here"}}}},
    }
    for place, one in enumerate([*made, None]):
        if place == min(declared, len(made)):
            world.declare(**bodies[shape])
            world.deliver()
        if place in cuts:
            world.flush()
            world.deliver()
        if one is not None:
            world.push(one)
    world.flush()
    world.deliver()

    world.check("todos")
