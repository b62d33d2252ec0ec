"""A network that loses, repeats and delays: nothing is lost, nothing happens twice."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.client import Fault, MemoryTransport, Status
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.errors import ClockDrift, LakeSyncError, OutOfOrder, Retry, Unreachable
from lakesync.result import Err, Ok
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import check_sound, reopened, rows_of
from tests.support.builders import WALL_MS

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.client.memory_transport import Pulls, Pushes
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage, Push
    from lakesync.result import Result
    from tests.client.support.world import World


def unreachable(result: Result[object, LakeSyncError]) -> None:
    assert isinstance(result, Err)
    assert (result.error.code, result.error.retry) == ("UNREACHABLE", Retry.LATER)


def once_each(world: World) -> bool:
    return set(Counter(delta.delta_id for delta in world.deltas()).values()) <= {1}


def with_a_refused_event(
    world: World, transport: MemoryTransport | None = None
) -> tuple[Client, Delta]:
    """Return a client with an event in quarantine, and a later one at the gateway."""
    world.gateway.append_only("events")
    world.gateway.only_text_in("events")
    client = world.client(transport=transport or world.transport())
    first = client.insert("events", "e1", {"title": 7}).unwrap()
    client.insert("events", "e2", {"title": "x"}).unwrap()
    client.sync().unwrap()
    return client, first


@pytest.mark.law("K3")
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.DELAY])
def test_a_push_without_an_answer_is_repeated_and_applied_once(both: World, fault: Fault) -> None:
    transport = both.transport()
    client = both.client(transport=transport)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    with client.transaction() as edits:
        edits.insert("todos", "t2", {"title": "y"}).unwrap()
        edits.insert("todos", "t3", {"title": "z"}).unwrap()
    transport.faults.append(fault)

    unreachable(client.push())
    assert [entry.status for entry in client.pending().unwrap()] == [
        Status.SENT,
        Status.PENDING,
        Status.PENDING,
    ]
    check_sound(client)
    client = reopened(both, client, transport=transport)
    client.sync().unwrap()

    assert client.pending() == Ok([])
    assert rows_of(client) == both.rows()
    assert len(both.rows()) == 3
    assert once_each(both)
    check_sound(client)


@pytest.mark.law("K3")
def test_a_push_that_arrives_twice_is_applied_once(both: World) -> None:
    transport = both.transport()
    client = both.client(transport=transport)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    transport.faults.append(Fault.DUPLICATE)

    assert client.push().unwrap().accepted == 1

    assert once_each(both)
    check_sound(client)


@pytest.mark.law("K3")
def test_an_echo_acknowledges_an_edit_whose_receipt_was_lost(both: World) -> None:
    transport = both.transport()
    client = both.client(transport=transport)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.update("todos", "t1", {"n": 1}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    unreachable(client.push())
    client.update("todos", "t1", {"n": 2}).unwrap()

    client.pull().unwrap()

    assert [entry.delta.columns for entry in client.pending().unwrap()] == [(("n", b"2"),)]
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == both.rows()
    assert once_each(both)


class _Twice(MemoryTransport):
    """Brings every delta twice, as a page does with a row that has just come into sight."""

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        page = super().pull(pull)
        return replace(page, records=page.records * 2, count=page.count * 2)


@pytest.mark.law("K3")
def test_a_repeated_echo_acknowledges_only_its_own_edit(both: World) -> None:
    transport = _Twice(GATEWAY, both.gateway, both.gateway)
    client = both.client(transport=transport)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    unreachable(client.push())
    client.update("todos", "t1", {"n": 2}).unwrap()

    client.pull().unwrap()

    assert [entry.delta.columns for entry in client.pending().unwrap()] == [(("n", b"2"),)]
    check_sound(client)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.DELAY])
def test_a_lost_page_is_fetched_again(both: World, fault: Fault) -> None:
    other = both.client("other")
    for place in range(30):
        other.insert("todos", f"t{place}", {"n": place}).unwrap()
        other.push().unwrap()
    transport = both.transport()
    client = both.client(transport=transport, page_deltas=10)
    transport.faults += [Fault.NONE, fault]

    unreachable(client.pull())
    assert len(rows_of(client)) == 10
    client.pull().unwrap()

    assert rows_of(client) == both.rows()
    check_sound(client)


@pytest.mark.law("K3")
def test_every_pair_of_network_faults_ends_in_the_gateways_rows(both: World) -> None:
    for number, luck in enumerate(itertools.product(Fault, repeat=2)):
        transport = both.transport()
        client = both.client(f"c{number}", transport=transport)
        client.insert("todos", f"t{number}", {"n": 1}).unwrap()
        with client.transaction() as edits:
            edits.update("todos", f"t{number}", {"n": 2}).unwrap()
            edits.insert("todos", f"u{number}", {"n": 3}).unwrap()
        transport.faults += luck
        for _ in range(4):
            if isinstance(client.sync(), Ok):
                break
        client.sync().unwrap()
        assert client.pending() == Ok([])
        assert rows_of(client) == both.rows()
        check_sound(client)
        client.close()
    assert once_each(both)


@pytest.mark.law("K11")
def test_append_table_edits_are_all_accepted_after_a_refused_one_is_replaced(both: World) -> None:
    both.gateway.append_only("events")
    client = both.client()
    bad = client.insert("events", "e1", {"title": 7}).unwrap()
    client.insert("events", "e2", {"title": "x"}).unwrap()
    client.sync().unwrap()
    client.insert("events", "e3", {"title": "y"}).unwrap()
    client.sync().unwrap()
    if client.quarantined().unwrap():  # the real gateway checks the type: let it be good
        client.discard(bad.delta_id).unwrap()
        client.insert("events", "e1", {"title": "z"}).unwrap()
        client.sync().unwrap()

    assert len(both.deltas()) == 3
    assert rows_of(client) == both.rows()
    check_sound(client)


@pytest.mark.law("K11")
@pytest.mark.parametrize("is_lost", [False, True], ids=["never accepted", "its request was lost"])
def test_a_late_append_table_edit_that_the_gateway_lacks_is_restamped(
    world: World, *, is_lost: bool
) -> None:
    transport = world.transport()
    client, first = with_a_refused_event(world, transport)
    world.gateway.strict.clear()
    client.retry(first.delta_id).unwrap()
    if is_lost:
        transport.faults.append(Fault.LOSE_REQUEST)
        unreachable(client.push())

    summary = client.sync().unwrap()

    assert (summary.pushed.restamped, summary.pushed.accepted) == (1, 1)
    assert [delta.row_id for delta in world.deltas()] == ["e2", "e1"]
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.law("K7", "K11")
def test_a_quarantined_append_table_edit_after_a_late_one_is_restamped_and_stays_quarantined(
    world: World,
) -> None:
    world.gateway.append_only("events")
    world.gateway.only_text_in("events")
    client = world.client()
    first = client.insert("events", "e1", {"title": 7}).unwrap()
    client.insert("events", "e2", {"title": "x"}).unwrap()
    last = client.insert("events", "e3", {"title": 8}).unwrap()
    client.sync().unwrap()
    world.gateway.strict.clear()
    client.retry(first.delta_id).unwrap()

    client.sync().unwrap()

    (entry,) = client.quarantined().unwrap()
    assert (entry.delta.row_id, entry.code) == ("e3", "SCHEMA_ERROR")
    assert entry.delta.hlc > last.hlc
    assert [delta.row_id for delta in world.deltas()] == ["e2", "e1"]
    check_sound(client)


@pytest.mark.law("K11")
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_append_table_edits_whose_request_or_receipt_was_lost_are_stored_once(
    world: World, fault: Fault
) -> None:
    """The naive gateway remembers one event of a client only, so a repeat of two looks late."""
    world.gateway.append_only("events")
    transport = world.transport()
    client = world.client(transport=transport)
    client.insert("events", "e1", {"title": "x"}).unwrap()
    client.insert("events", "e2", {"title": "y"}).unwrap()
    transport.faults.append(fault)

    unreachable(client.push())
    client.sync().unwrap()

    assert [delta.row_id for delta in world.deltas()] == ["e1", "e2"]
    assert client.pending() == Ok([])
    assert rows_of(client) == world.rows()
    check_sound(client)


def test_a_late_append_table_edit_that_may_be_stored_needs_a_pull(world: World) -> None:
    world.gateway.append_only("events")
    transport = world.transport()
    client = world.client(transport=transport)
    client.insert("events", "e1", {"title": "x"}).unwrap()
    client.insert("events", "e2", {"title": "y"}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    unreachable(client.push())

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.code == "OUT_OF_ORDER"
    client.pull().unwrap()
    assert client.pending() == Ok([])


def test_the_memory_transport_accepts_any_push_and_pull_services(world: World) -> None:
    pushes: Pushes = world.gateway
    pulls: Pulls = world.gateway
    transport = MemoryTransport(GATEWAY, pushes, pulls, [Fault.LOSE_REQUEST])

    client = world.client(transport=transport)

    unreachable(client.pull())
    assert client.pull().unwrap().pages == 1


@pytest.mark.law("K11")
def test_edits_that_may_have_arrived_keep_their_stamps_when_an_earlier_edit_is_restamped(
    world: World,
) -> None:
    transport = world.transport()
    client, first = with_a_refused_event(world, transport)
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"n": 1}).unwrap()
        edits.insert("events", "e3", {"title": "y"}).unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    unreachable(client.push())
    world.gateway.strict.clear()
    client.retry(first.delta_id).unwrap()

    client.push().unwrap()

    rows = [delta.row_id for delta in world.deltas() if delta.table == "events"]
    assert rows == ["e2", "e3", "e1"]
    assert client.pending() == Ok([])
    check_sound(client)


class _Slow(MemoryTransport):
    """A way on which the first push stands still; it arrives just before the one that `late` is.

    The gateway finds that one late: so it does where it answers from a shard whose mark it has not
    read since (A1).
    """

    def __init__(self, world: World, refusal: LakeSyncError, late: int) -> None:
        super().__init__(GATEWAY, world.gateway, world.gateway)
        self.pushed = 0
        self._refusal = refusal
        self._late = late
        self._first: Push | None = None

    def push(self, push: Push) -> PushReceipt:
        """Hand deltas over."""
        self.pushed += 1
        if self._first is None:
            self._first = push
            raise Unreachable("the request took too long; try again")
        if self.pushed != self._late:
            return super().push(push)
        if isinstance(self._refusal, OutOfOrder):
            super().push(self._first)
        refused = tuple(
            DeltaOutcome(place, delta.delta_id, OutcomeKind.REFUSED, self._refusal)
            for place, delta in push.deltas
        )
        return PushReceipt(0, 0, refused, WALL_MS)


@pytest.mark.law("K11")
@pytest.mark.parametrize("late", [2, 3])
def test_an_append_table_edit_that_arrived_after_a_pull_is_not_restamped(
    world: World, late: int
) -> None:
    world.gateway.append_only("events")
    other = world.client("other")
    other.insert("todos", "t1", {"title": "so that the log has an end"}).unwrap()
    other.push().unwrap()
    transport = _Slow(world, OutOfOrder("late"), late)
    client = world.client(transport=transport)
    client.insert("events", "e1", {"title": "x"}).unwrap()
    unreachable(client.push())
    client.pull().unwrap()  # not there yet
    if late > 2:
        transport.faults.append(Fault.LOSE_REQUEST)
        unreachable(client.push())
        client.pull().unwrap()

    summary = client.sync().unwrap()

    assert summary.pushed.restamped == 0
    assert [delta.row_id for delta in world.deltas()] == ["t1", "e1"]
    assert client.pending() == Ok([])
    check_sound(client)


@pytest.mark.law("K11")
def test_an_append_table_edit_that_may_be_in_flight_is_not_restamped_for_clock_drift(
    world: World,
) -> None:
    """The function that answers is behind the one that the first push may still reach."""
    world.gateway.append_only("events")
    other = world.client("other")
    other.insert("todos", "t1", {"title": "so that the log has an end"}).unwrap()
    other.push().unwrap()
    transport = _Slow(world, ClockDrift("ahead"), 2)
    client = world.client(transport=transport)
    event = client.insert("events", "e1", {"title": "x"}).unwrap()
    unreachable(client.push())
    client.pull().unwrap()

    assert isinstance(client.push(), Err)

    assert [entry.delta for entry in client.pending().unwrap()] == [event]
    client.sync().unwrap()
    assert world.deltas()[1:] == [event]
    check_sound(client)
