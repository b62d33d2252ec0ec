"""Pushes that are refused as a whole, by who knows whom: the guilty edit is found and set aside."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client import Fault, Status
from lakesync.errors import (
    AuthFailed,
    BodyTooLarge,
    ClientTaken,
    Conflict,
    Forbidden,
    GatewayDeleted,
    LakeSyncError,
    NotFound,
    OutOfOrder,
    Revoked,
    TransactionOpen,
    Unavailable,
    Unreachable,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import Clock, World, check_sound, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt


@dataclass
class Guard:
    """A transport with a guard before the gateway, who refuses whole pushes and names no delta."""

    world: World
    refuses: Callable[[Push], LakeSyncError | None]
    pushes: list[Push] = field(default_factory=list)

    def push(self, push: Push) -> PushReceipt:
        """Push, if the guard lets it through."""
        self.pushes.append(push)
        error = self.refuses(push)
        if error is not None:
            raise error
        receipt: PushReceipt = self.world.gateway.push(GATEWAY, push)
        return receipt

    def pull(self, pull: Pull) -> PullPage:
        """Pull."""
        page: PullPage = self.world.gateway.pull(GATEWAY, pull)
        return page


def naming(rows: set[str], error: type[LakeSyncError] = Forbidden) -> Callable[[Push], object]:
    """Refuse whatever names one of some rows."""

    def judge(push: Push) -> LakeSyncError | None:
        guilty = any(delta.row_id in rows for _, delta in push.deltas)
        return error("Forbidden [HTTP 403]") if guilty else None

    return judge


@pytest.mark.law("K7")
@pytest.mark.parametrize("error", [Forbidden, ValidationFailed, NotFound, BodyTooLarge])
def test_the_edit_that_causes_a_push_to_be_refused_is_quarantined_and_all_others_are_accepted(
    both: World, error: type[LakeSyncError]
) -> None:
    guard = Guard(both, naming({"t333"}, error))  # type: ignore[arg-type]
    client = both.client(transport=guard)
    for number in range(500):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    summary = client.sync().unwrap()

    assert (summary.pushed.accepted, summary.pushed.quarantined) == (499, 1)
    (entry,) = client.quarantined().unwrap()
    assert (entry.delta.row_id, entry.code) == ("t333", error.code)
    assert client.pending() == Ok([])
    assert "t333" not in {row_id for _, row_id in both.rows()}
    assert len(both.rows()) == 499
    assert len(guard.pushes) <= 4 * math.ceil(math.log2(500))
    check_sound(client)


@pytest.mark.law("E1", "U2")
@pytest.mark.parametrize("error", [ClientTaken, GatewayDeleted, Revoked])
def test_a_client_without_access_keeps_its_edits_and_pushes_once(
    both: World, error: type[LakeSyncError]
) -> None:
    revoked = [True]
    guard = Guard(both, lambda _: error("revoked") if revoked else None)
    client = both.client(transport=guard)
    for number in range(20):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    refusal = client.push()

    assert isinstance(refusal, Err)
    assert refusal.error.code == error.code
    assert len(guard.pushes) == 1
    assert (len(client.pending().unwrap()), client.quarantined()) == (20, Ok([]))
    revoked.clear()
    assert client.sync().unwrap().pushed.accepted == 20


@pytest.mark.law("K7")
@given(guilty=st.sets(st.integers(0, 29), max_size=4), data=st.data())
def test_exactly_the_edits_and_transactions_that_cause_refusals_are_quarantined(
    tmp_path_factory: pytest.TempPathFactory, guilty: set[int], data: st.DataObject
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    guard = Guard(world, naming({f"t{number}" for number in guilty}))  # type: ignore[arg-type]
    client = world.client(transport=guard)
    sizes: list[int] = []
    number = 0
    while number < 30:
        size = min(data.draw(st.integers(1, 4)), 30 - number)
        sizes.append(size)
        if size == 1:
            client.insert("todos", f"t{number}", {"n": number}).unwrap()
        else:
            with client.transaction() as edits:
                for place in range(number, number + size):
                    edits.insert("todos", f"t{place}", {"n": place}).unwrap()
        number += size

    summary = client.sync().unwrap()

    expected: set[str] = set()
    first = 0
    for size in sizes:
        unit = set(range(first, first + size))
        if unit & guilty:
            expected |= {f"t{place}" for place in unit}
        first += size
    refused = client.quarantined().unwrap()
    assert {entry.delta.row_id for entry in refused} == expected
    assert summary.pushed.quarantined == len(expected)
    assert len(world.rows()) == 30 - len(expected)
    check_sound(client)
    world.close()


@pytest.mark.law("K7", "K8")
def test_a_transaction_whose_push_is_refused_is_quarantined_whole(both: World) -> None:
    client = both.client(transport=Guard(both, naming({"bad"})))  # type: ignore[arg-type]
    for name in ("good", "bad", "fine"):
        with client.transaction() as edits:
            edits.insert("todos", name, {"n": 1}).unwrap()
            edits.insert("todos", f"{name} too", {"n": 2}).unwrap()

    client.sync().unwrap()

    assert {entry.delta.row_id for entry in client.quarantined().unwrap()} == {"bad", "bad too"}
    assert {row_id for _, row_id in both.rows()} == {"good", "good too", "fine", "fine too"}
    check_sound(client)


@pytest.mark.law("K7")
def test_no_edit_is_quarantined_when_the_client_itself_is_refused(both: World) -> None:
    guard = Guard(both, lambda _: Forbidden("the token is for another gateway"))
    client = both.client(transport=guard)
    for number in range(100):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    result = client.sync()

    assert isinstance(result, Err)
    assert result.error.code == "FORBIDDEN"
    assert client.quarantined() == Ok([])
    assert {entry.status for entry in client.pending().unwrap()} == {Status.PENDING}
    assert len(guard.pushes) <= 10
    guard.refuses = lambda _: None
    client.sync().unwrap()
    assert len(both.rows()) == 100


@pytest.mark.parametrize(
    "error",
    [AuthFailed, Conflict, OutOfOrder, Unavailable, Unreachable],
    ids=lambda kind: kind.code,
)
def test_a_push_refused_temporarily_is_neither_split_nor_quarantined(
    world: World, error: type[LakeSyncError]
) -> None:
    guard = Guard(world, lambda _: error("not now"))
    client = world.client(transport=guard)
    for number in range(10):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.code == error.code
    assert len(guard.pushes) == 1
    assert client.quarantined() == Ok([])


def test_no_edit_is_quarantined_while_the_cause_of_a_refusal_is_unknown(world: World) -> None:
    """The network goes away between the refusal and the empty push that would tell."""
    answers: list[LakeSyncError] = [Forbidden("no"), Unreachable("away")]
    client = world.client(transport=Guard(world, lambda _: answers.pop(0)))
    client.insert("todos", "t1", {"n": 1}).unwrap()

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.code == "UNREACHABLE"
    assert [entry.status for entry in client.pending().unwrap()] == [Status.PENDING]
    assert client.quarantined() == Ok([])


# --- discard --------------------------------------------------------------------------------------


@pytest.mark.law("K7")
def test_any_pending_edit_can_be_discarded_and_its_row_is_shown_without_it(both: World) -> None:
    client = both.client()
    client.insert("todos", "t1", {"title": "first", "done": False}).unwrap()
    client.sync().unwrap()
    both.clock.ms += 10
    changed = client.update("todos", "t1", {"title": "second"}).unwrap()
    client.update("todos", "t1", {"done": True}).unwrap()
    made = client.insert("todos", "t2", {"title": "new"}).unwrap()
    with client.transaction() as edits:
        dropped = edits.insert("todos", "t3", {"n": 3}).unwrap()
        edits.insert("todos", "t4", {"n": 4}).unwrap()

    for delta in (changed, made, dropped):
        assert client.discard(delta.delta_id) == Ok(delta)

    expected = {("todos", "t1"): {"title": "first", "done": True}, ("todos", "t4"): {"n": 4}}
    assert rows_of(client) == expected
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == both.rows() == expected
    check_sound(client)


@pytest.mark.law("K4", "K7")
def test_a_discarded_edit_that_was_already_stored_is_pulled_back_and_its_stamp_not_reused(
    both: World,
) -> None:
    transport = both.transport()
    client = both.client(transport=transport)
    client.insert("todos", "t0", {"n": 0}).unwrap()
    client.sync().unwrap()
    transport.faults.append(Fault.LOSE_ANSWER)
    arrived = client.insert("todos", "t1", {"n": 1}).unwrap()
    assert isinstance(client.push(), Err)
    client.discard(arrived.delta_id).unwrap()
    assert client.get("todos", "t1") == Ok(None)
    client.close()
    both.clock.ms -= 1_000
    client = both.client()

    later = client.insert("todos", "t2", {"n": 2}).unwrap()
    client.sync().unwrap()

    assert later.hlc > arrived.hlc
    assert rows_of(client) == both.rows()
    assert client.get("todos", "t1") == Ok({"n": 1})
    check_sound(client)


@pytest.mark.law("K10")
def test_a_quarantined_edit_stamped_far_ahead_does_not_block_later_edits(
    both: World,
) -> None:
    device = Clock(both.clock.ms + 86_400_000)
    client = both.client(transport=Guard(both, naming({"bad"})), wall_clock=device)  # type: ignore[arg-type]
    client.insert("todos", "bad", {"n": 1}).unwrap()
    assert client.push().unwrap().quarantined == 1
    client.insert("todos", "good", {"n": 2}).unwrap()

    summary = client.sync().unwrap()

    assert summary.pushed.accepted == 1
    assert [entry.delta.row_id for entry in client.quarantined().unwrap()] == ["bad"]
    assert sorted(both.rows()) == [("todos", "good")]
    check_sound(client)


def test_a_discarded_edit_stamped_far_ahead_does_not_advance_later_stamps(world: World) -> None:
    client = world.client()
    world.clock.ms += 86_400_000
    ahead = client.insert("todos", "t1", {"n": 1}).unwrap()
    world.clock.ms -= 86_400_000
    client.discard(ahead.delta_id).unwrap()
    client.close()
    client = world.client()

    assert client.insert("todos", "t2", {"n": 2}).unwrap().hlc < ahead.hlc
    assert client.sync().unwrap().pushed.accepted == 1


@pytest.mark.law("K4")
def test_clearing_the_outbox_restores_the_gateways_rows(both: World) -> None:
    transport = Guard(both, naming({"bad"}))  # type: ignore[arg-type]
    client = both.client(transport=transport)
    client.insert("todos", "t1", {"title": "first"}).unwrap()
    client.sync().unwrap()
    client.insert("todos", "bad", {"n": 1}).unwrap()
    assert client.push().unwrap().quarantined == 1
    for title in ("second", "third"):
        client.update("todos", "t1", {"title": title}).unwrap()
    client.delete("todos", "t1").unwrap()
    client.insert("todos", "t2", {"n": 2}).unwrap()

    assert client.clear_outbox() == Ok(5)
    assert (client.pending(), client.quarantined()) == (Ok([]), Ok([]))
    assert rows_of(client) == both.rows() == {("todos", "t1"): {"title": "first"}}
    check_sound(client)
    assert client.clear_outbox() == Ok(0)
    client.insert("todos", "t3", {"n": 3}).unwrap()
    assert client.sync().unwrap().pushed.accepted == 1
    assert rows_of(client) == both.rows()


def test_clearing_the_outbox_is_refused_inside_a_transaction(both: World) -> None:
    client = both.client()
    client.insert("todos", "t1", {"n": 1}).unwrap()
    with client.transaction() as edits:
        edits.insert("todos", "t2", {"n": 2}).unwrap()
        refused = client.clear_outbox()
    assert isinstance(refused, Err)
    assert isinstance(refused.error, TransactionOpen)
    assert len(client.pending().unwrap()) == 2


def test_discarding_an_edit_does_not_scan_the_outbox(world: World) -> None:
    """Counted in what is read of the outbox, not in seconds."""
    client = world.client()
    deltas = [client.insert("todos", f"t{number}", {"n": number}) for number in range(2_000)]
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    client._file.database.writer.set_progress_handler(count, 1_000)
    for delta in deltas:
        client.discard(delta.unwrap().delta_id).unwrap()

    assert client.pending() == Ok([])
    assert rows_of(client) == {}
    assert steps < 2_000
