"""What every store of connections promises: all that are open, and one who notifies at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.connections import ItemConnections, ItemTickets
from lakesync.ports import Connection, NotifyState
from tests.support.stores import NOT_MODELLED

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import Connections, Tickets

NOW, LATER = 1_000_000, 2_000_000
pytestmark = pytest.mark.parametrize("store", NOT_MODELLED, indirect=True)


@pytest.fixture
def connections(item_store: ItemStore) -> Connections:
    return ItemConnections(item_store)


@pytest.fixture
def tickets(item_store: ItemStore) -> Tickets:
    return ItemTickets(item_store)


def connection(
    gateway: str, name: str = "L0SM9cOFvHcCIhw=", *, is_json: bool = False
) -> Connection:
    claims = {"sub": "ann|1", "teams": ["red", "\U0001f600"], "level": 3}
    return Connection(
        gateway, name, "phone|1", "ann|1", 1_795_251_600.5, NOW, claims, "s", "r", is_json=is_json
    )


@pytest.mark.law("T6")
@pytest.mark.parametrize("is_json", [False, True])
def test_connection_is_returned_until_removed(
    connections: Connections,
    gateway: str,
    is_json: bool,  # noqa: FBT001
) -> None:
    wanted = connection(gateway, is_json=is_json)
    assert connections.get(gateway, wanted.id) is None
    connections.add(wanted)
    assert connections.get(gateway, wanted.id) == wanted
    assert connections.of_gateway(gateway) == ([wanted], NotifyState())
    connections.remove(gateway, wanted.id)
    connections.remove(gateway, wanted.id)
    assert connections.get(gateway, wanted.id) is None
    assert connections.of_gateway(gateway) == ([], NotifyState())


def test_connections_are_separate_by_gateway(connections: Connections, gateway: str) -> None:
    connections.add(connection(gateway))

    assert connections.of_gateway(f"{gateway}x") == ([], NotifyState())
    assert connections.get(f"{gateway}x", connection(gateway).id) is None


def test_rescope_changes_a_connection_and_creates_none(
    connections: Connections, gateway: str
) -> None:
    here, gone = connection(gateway), connection(gateway, "gone")
    connections.add(here)
    for one in (here, gone):
        connections.rescope(replace(one, scope="other", rules="new"))

    assert connections.of_gateway(gateway)[0] == [replace(here, scope="other", rules="new")]


def test_all_connections_of_all_gateways_are_scanned(
    connections: Connections, gateway: str
) -> None:
    wanted = {(f"{gateway}{letter}", f"c{n}") for letter in "ab" for n in range(3)}
    for name, number in wanted:
        connections.add(connection(name, number))
    connections.begin(f"{gateway}a", "me", NOW, LATER)
    scanned, place = connections.scan("")
    while place:
        some, place = connections.scan(place)
        scanned += some

    mine = [(one.gateway, one.id) for one in scanned if one.gateway.startswith(gateway)]
    assert set(mine) == wanted
    assert len(mine) == len(wanted)


@pytest.mark.law("T7")
def test_frames_are_summed_per_window_across_readers(
    connections: Connections, gateway: str
) -> None:
    def read() -> Connection:
        known = connections.get(gateway, connection(gateway).id)
        assert known is not None
        return known

    first = connection(gateway)
    assert not connections.count_frames(first, 5, 10), "it is not remembered"
    connections.add(first)
    assert (read().window, read().frames) == (0, 0)
    assert connections.count_frames(first, 5, 10)
    assert not connections.count_frames(first, 5, 10), "it was read before the span began"
    for _ in range(2):
        assert connections.count_frames(read(), 5, 10)
    assert read() == replace(first, window=5, frames=30)
    before = read()
    assert connections.count_frames(before, 6, 10)
    assert not connections.count_frames(before, 5, 10), "that span is over"
    assert read() == replace(first, window=6, frames=10)
    connections.rescope(replace(first, scope="other", rules="new"))
    assert (read().frames, read().scope) == (10, "other")


@pytest.mark.law("T8")
def test_concurrent_begins_give_one_notifier_the_turn(
    connections: Connections, gateway: str
) -> None:
    with ThreadPoolExecutor(8) as pool:
        began = list(pool.map(lambda n: connections.begin(gateway, f"p{n}", NOW, LATER), range(16)))

    assert began.count(True) == 1


@pytest.mark.law("T8")
def test_notifier_may_begin_again_and_another_only_after_expiry(
    connections: Connections, gateway: str
) -> None:
    assert connections.begin(gateway, "me", NOW, LATER)
    assert connections.begin(gateway, "me", NOW, LATER)
    assert not connections.begin(gateway, "other", LATER, LATER + 1)
    assert connections.begin(gateway, "other", LATER + 1, LATER + 9)


@pytest.mark.law("T8")
def test_commit_left_for_a_notifier_keeps_its_turn_open(
    connections: Connections, gateway: str
) -> None:
    connections.begin(gateway, "me", NOW, LATER)
    assert connections.leave(gateway, 7, NOW)
    assert connections.leave(gateway, 5, NOW)
    assert not connections.end(gateway, "me", 6)
    assert connections.of_gateway(gateway)[1] == NotifyState(6, 7)
    assert connections.end(gateway, "me", 7)
    assert connections.of_gateway(gateway)[1] == NotifyState(7)


@pytest.mark.law("T8")
def test_commit_cannot_be_left_without_an_active_notifier(
    connections: Connections, gateway: str
) -> None:
    assert not connections.leave(gateway, 7, NOW)
    connections.begin(gateway, "me", NOW, LATER)
    assert not connections.leave(gateway, 7, LATER + 1)
    assert connections.end(gateway, "me", 1)
    assert not connections.leave(gateway, 7, NOW)


@pytest.mark.law("T8")
def test_notifier_that_lost_its_turn_does_not_end_the_new_one(
    connections: Connections, gateway: str
) -> None:
    connections.begin(gateway, "me", NOW, LATER)
    connections.begin(gateway, "other", LATER + 1, LATER + 9)
    assert connections.end(gateway, "me", 5)
    assert connections.of_gateway(gateway)[1] == NotifyState()
    assert not connections.begin(gateway, "third", LATER + 2, LATER + 9)


@pytest.mark.law("T8")
@pytest.mark.parametrize("place", ["", "L0SM9cOFvHcCIhw="])
def test_handed_on_turn_can_be_resumed_by_another_notifier(
    connections: Connections, gateway: str, place: str
) -> None:
    connections.begin(gateway, "me", NOW, LATER)
    connections.leave(gateway, 7, NOW)
    connections.hand_on(gateway, "me", NotifyState(5, place=place))
    assert connections.of_gateway(gateway)[1] == NotifyState(5, 7, place)
    assert not connections.leave(gateway, 8, NOW), "nobody is at work"
    assert connections.begin(gateway, "other", NOW, LATER)
    connections.hand_on(gateway, "me", NotifyState(1))
    assert connections.of_gateway(gateway)[1] == NotifyState(5, 7, place)
    assert not connections.begin(gateway, "third", NOW, LATER)
    assert not connections.end(gateway, "other", 6)
    assert connections.of_gateway(gateway)[1] == NotifyState(6, 7)
    assert connections.end(gateway, "other", 7)
    assert connections.of_gateway(gateway)[1] == NotifyState(7)


# --- tickets --------------------------------------------------------------------------------------

CLAIMS = {"sub": "ann|1", "gw": "g", "exp": 1_795_251_600.5, "teams": ["red", "\U0001f600"]}


@pytest.fixture
def digest(gateway: str) -> str:
    return sha256(gateway.encode()).hexdigest()


@pytest.mark.law("T10")
def test_a_ticket_is_taken_once(tickets: Tickets, digest: str) -> None:
    assert tickets.take(digest, NOW) is None
    tickets.keep(digest, CLAIMS, LATER)
    assert tickets.take(f"{digest[:-1]}x", NOW) is None
    assert tickets.take(digest, NOW) == CLAIMS
    assert tickets.take(digest, NOW) is None


@pytest.mark.law("T10")
def test_concurrent_takes_of_a_ticket_give_it_to_one_taker(tickets: Tickets, digest: str) -> None:
    tickets.keep(digest, CLAIMS, LATER)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: tickets.take(digest, NOW), range(16)))

    assert sorted(taken, key=bool) == [None] * 15 + [CLAIMS]


@pytest.mark.law("T10")
def test_ticket_is_valid_through_its_last_millisecond(tickets: Tickets, digest: str) -> None:
    tickets.keep(digest, CLAIMS, LATER)
    assert tickets.take(digest, LATER + 1) is None
    tickets.keep(f"{digest}2", CLAIMS, LATER)
    assert tickets.take(f"{digest}2", LATER) == CLAIMS


@pytest.mark.law("T10")
def test_ticket_is_not_listed_as_a_connection(
    connections: Connections, tickets: Tickets, gateway: str, digest: str
) -> None:
    tickets.keep(digest, CLAIMS, LATER)
    connections.add(connection(gateway))
    scanned, place = connections.scan("")
    while place:
        some, place = connections.scan(place)
        scanned += some

    assert [one for one in scanned if one.gateway == gateway] == [connection(gateway)]
    assert not [one for one in scanned if digest in one.gateway]
    assert tickets.take(digest, NOW) == CLAIMS
