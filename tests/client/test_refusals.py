"""Refused edits: quarantined with their reason, while their neighbours flow."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from lakesync.client import Status
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PullPage, PushReceipt
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    BodyTooLarge,
    Contention,
    Forbidden,
    Unavailable,
    Unreachable,
)
from lakesync.result import Err, Ok
from tests.client.support.world import check_sound, reopened, rows_of
from tests.support.builders import at_ms
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.messages import Pull, Push
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from tests.client.support.world import World


@pytest.mark.law("K7")
def test_a_refused_delta_is_quarantined_and_the_others_are_accepted(both: World) -> None:
    both.gateway.only_text_in("strict")
    client = both.client()
    client.insert("strict", "r1", {"title": "good"}).unwrap()
    bad = client.insert("strict", "r2", {"title": 7}).unwrap()
    client.insert("strict", "r3", {"title": "good"}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.quarantined) == (2, 1)
    (entry,) = client.quarantined().unwrap()
    assert (entry.delta, entry.status, entry.code) == (bad, Status.QUARANTINED, "SCHEMA_ERROR")
    assert entry.reason
    assert entry.error is not None
    assert entry.error.field == "title"
    assert client.pending() == Ok([])
    assert both.rows() == {
        ("strict", "r1"): {"title": "good"},
        ("strict", "r3"): {"title": "good"},
    }
    assert client.push().unwrap().accepted == 0  # it waits for the app
    assert client.sync().unwrap().pushed.quarantined == 0
    check_sound(client)


@pytest.mark.law("K7")
def test_a_quarantined_value_stays_visible_and_survives_restarts_and_pulls(both: World) -> None:
    both.gateway.only_text_in("strict")
    client, other = both.client(), both.client("other")
    client.insert("strict", "r1", {"title": 7, "done": False}).unwrap()
    client.sync().unwrap()
    other.insert("strict", "r1", {"done": True}).unwrap()
    both.clock.ms += 10
    other.update("strict", "r1", {"done": True}).unwrap()
    other.sync().unwrap()
    client = reopened(both, client)

    client.sync().unwrap()

    assert client.get("strict", "r1").unwrap() == {"title": 7, "done": True}
    assert len(client.quarantined().unwrap()) == 1
    check_sound(client)


@pytest.mark.law("K7")
def test_discarding_a_quarantined_edit_shows_the_row_without_it(both: World) -> None:
    both.gateway.only_text_in("strict")
    client = both.client()
    client.insert("strict", "r1", {"title": "first", "done": False}).unwrap()
    client.sync().unwrap()
    both.clock.ms += 10
    client.update("strict", "r1", {"title": 7, "done": True}).unwrap()
    client.insert("strict", "r2", {"title": 8}).unwrap()
    client.sync().unwrap()
    client.update("strict", "r1", {"done": None}).unwrap()
    client.sync().unwrap()

    for entry in some(client.quarantined().unwrap()):
        assert client.discard(entry.delta.delta_id) == Ok(entry.delta)

    assert rows_of(client) == {("strict", "r1"): {"title": "first", "done": None}} == both.rows()
    assert client.query("SELECT _row_id FROM strict").unwrap() == [{"_row_id": "r1"}]
    assert client.quarantined() == Ok([])
    check_sound(client)


@pytest.mark.law("K7")
def test_a_retried_quarantined_edit_is_accepted_once_it_is_allowed(world: World) -> None:
    world.gateway.only_text_in("strict")
    client = world.client()
    client.insert("strict", "r1", {"title": 7}).unwrap()
    client.push().unwrap()
    (entry,) = client.quarantined().unwrap()

    assert client.retry(entry.delta.delta_id) == Ok(entry.delta)
    assert client.push().unwrap().quarantined == 1  # still refused, still there
    world.gateway.strict.clear()
    client.retry(entry.delta.delta_id).unwrap()
    assert client.push().unwrap().accepted == 1

    assert client.quarantined() == Ok([])
    assert rows_of(client) == world.rows() == {("strict", "r1"): {"title": 7}}
    check_sound(client)


def test_only_quarantined_edits_are_retried_and_only_existing_ones_discarded(
    world: World,
) -> None:
    client = world.client()
    delta = client.insert("todos", "t1", {"title": "x"}).unwrap()

    assert _error(client.retry(delta.delta_id)).code == "NOT_FOUND"
    assert _error(client.discard("0" * 64)).code == "NOT_FOUND"
    assert len(client.pending().unwrap()) == 1
    client.sync().unwrap()
    assert _error(client.discard(delta.delta_id)).code == "NOT_FOUND"


@pytest.mark.law("K8")
def test_only_the_refused_edit_of_a_transaction_is_quarantined_and_the_rest_is_pushed_atomically(
    both: World,
) -> None:
    both.gateway.only_text_in("strict")
    client = both.client()
    with client.transaction() as edits:
        edits.insert("strict", "r1", {"title": "good"}).unwrap()
        edits.insert("strict", "r2", {"title": 7}).unwrap()
        edits.insert("strict", "r3", {"title": "good"}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.quarantined) == (2, 1)
    assert [(push.atomic, len(push.deltas)) for push in both.gateway.pushes] == [
        (True, 3),
        (True, 2),
    ]
    assert sorted(both.rows()) == [("strict", "r1"), ("strict", "r3")]
    check_sound(client)


class _Answers:
    """A transport that gives prepared answers to pushes."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.pushes: list[Push] = []

    def push(self, push: Push) -> PushReceipt:
        """Return the next answer."""
        self.pushes.append(push)
        answer = self.answers.pop(0)
        if isinstance(answer, PushReceipt):
            return answer
        if isinstance(answer, Exception):
            raise answer
        return answer(push)  # type: ignore[no-any-return,operator]

    def pull(self, _pull: object) -> PullPage:
        """Return an empty page."""
        return PullPage((), 0, 0, has_more=False)


def _refusing(error: LakeSyncError, *places: int) -> object:
    def answer(push: Push) -> PushReceipt:
        outcomes = tuple(
            DeltaOutcome(index, delta.delta_id, OutcomeKind.REFUSED, error)
            for index, delta in push.deltas
            if index in places
        )
        return PushReceipt(1, len(push.deltas) - len(outcomes), outcomes)

    return answer


def _error(result: Result[object, LakeSyncError]) -> LakeSyncError:
    assert isinstance(result, Err)
    return result.error


def test_a_delta_refused_for_contention_stays_pending_and_is_not_quarantined(world: World) -> None:
    transport = _Answers(_refusing(Contention("later"), 1), _refusing(Contention("later")))
    client = world.client(transport=transport)
    for place in range(3):
        client.insert("todos", f"t{place}", {"n": place}).unwrap()

    assert _error(client.push()).code == "CONTENTION"
    assert [entry.delta.row_id for entry in client.pending().unwrap()] == ["t1"]
    assert client.push().unwrap().accepted == 1
    check_sound(client)


@pytest.mark.law("K3")
def test_a_whole_push_that_is_refused_leaves_every_edit_in_the_outbox(world: World) -> None:
    away, no = Unavailable("later"), Forbidden("wrong gateway")
    client = world.client(transport=_Answers(no, no, away))
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    assert _error(client.push()).code == "FORBIDDEN"
    assert _error(client.sync()).code == "UNAVAILABLE"
    assert len(client.pending().unwrap()) == 1
    assert client.quarantined() == Ok([])


@pytest.mark.law("K3")
@pytest.mark.parametrize(
    "receipt",
    [
        PushReceipt(1, 3),
        PushReceipt(1, 1),
        PushReceipt(1, 1, (DeltaOutcome(0, "0" * 64, OutcomeKind.REFUSED, Forbidden("x")),)),
        PushReceipt(1, 1, (DeltaOutcome(9, "0" * 64, OutcomeKind.DUPLICATE),)),
    ],
)
def test_an_inconsistent_receipt_acknowledges_nothing(world: World, receipt: PushReceipt) -> None:
    client = world.client(transport=_Answers(receipt))
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.insert("todos", "t2", {"title": "x"}).unwrap()

    assert _error(client.push()).code == "INTERNAL_ERROR"
    assert len(client.pending().unwrap()) == 2
    check_sound(client)


def test_an_atomic_push_refused_without_a_refused_delta_is_an_error_and_not_repeated(
    world: World,
) -> None:
    client = world.client(transport=_Answers(_refusing(AtomicPushRefused("other"), 0, 1)))
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"title": "x"}).unwrap()
        edits.insert("todos", "t2", {"title": "x"}).unwrap()

    assert _error(client.push()).code == "INTERNAL_ERROR"
    assert len(client.pending().unwrap()) == 2


@pytest.mark.law("K7")
def test_a_push_with_too_large_a_body_is_halved_and_a_single_oversized_edit_quarantined(
    world: World,
) -> None:
    def small_bodies(push: Push) -> PushReceipt:
        if any(delta.row_id == "t3" for _, delta in push.deltas) or len(push.deltas) > 2:
            raise BodyTooLarge("too large")
        return PushReceipt(1, len(push.deltas))

    client = world.client(transport=_Answers(*[small_bodies] * 20))
    for place in range(6):
        client.insert("todos", f"t{place}", {"n": place}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.quarantined) == (5, 1)
    (entry,) = client.quarantined().unwrap()
    assert (entry.delta.row_id, entry.code) == ("t3", "BODY_TOO_LARGE")
    check_sound(client)


@pytest.mark.law("K8")
def test_a_transaction_with_too_large_a_body_is_pushed_edit_by_edit(world: World) -> None:
    def single_edits(push: Push) -> PushReceipt:
        if push.atomic:
            raise BodyTooLarge("too large")
        return PushReceipt(1, len(push.deltas))

    client = world.client(transport=_Answers(*[single_edits] * 20))
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"title": "x"}).unwrap()
        edits.insert("todos", "t2", {"title": "x"}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.ungrouped) == (2, 1)


@pytest.mark.law("K8")
def test_a_transaction_whose_every_delta_is_refused_for_its_size_is_pushed_edit_by_edit(
    world: World,
) -> None:
    too_large = _refusing(AtomicPushTooLarge("too many"), 0, 1)
    client = world.client(transport=_Answers(too_large, PushReceipt(1, 2)))
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"title": "x"}).unwrap()
        edits.insert("todos", "t2", {"title": "x"}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.ungrouped) == (2, 1)
    check_sound(client)


@pytest.mark.law("K5")
@pytest.mark.parametrize(
    "page",
    [
        PullPage((), 0, at_ms(0) - 1, has_more=False),
        PullPage((), 0, at_ms(0), has_more=True),
        PullPage((), 3, at_ms(1), has_more=False),
    ],
    ids=["leads back", "leads nowhere", "counts what is not there"],
)
def test_an_inconsistent_page_is_an_err_and_changes_nothing(world: World, page: PullPage) -> None:
    transport = _Answers()
    pages = [PullPage((), 0, at_ms(0), has_more=False), page]
    transport.pull = lambda _pull: pages.pop(0)  # type: ignore[method-assign]
    client = world.client(transport=transport)
    client.pull().unwrap()

    assert _error(client.pull()).code == "INTERNAL_ERROR"
    assert client.query("SELECT cursor FROM _lakesync_sync").unwrap() == [{"cursor": at_ms(0)}]


def test_a_sync_pulls_although_its_push_is_unavailable(world: World) -> None:
    other = world.client("other")
    other.insert("todos", "t1", {"title": "theirs"}).unwrap()
    other.sync().unwrap()
    client = world.client()
    client.insert("todos", "t2", {"title": "mine"}).unwrap()
    pushes, world.gateway.push = world.gateway.push, Mock(side_effect=Unavailable("full"))

    assert _error(client.sync()).code == "UNAVAILABLE"
    assert client.get("todos", "t1").unwrap() == {"title": "theirs"}
    world.gateway.push = pushes
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


@pytest.mark.law("K8", "K11")
def test_transactions_of_a_push_refused_for_its_size_return_to_pending(world: World) -> None:
    client = world.client(transport=_Answers(AtomicPushTooLarge("too many"), Unreachable("away")))
    for name in ("first", "second"):
        with client.transaction() as edits:
            edits.insert("todos", f"{name} t1", {"n": 1}).unwrap()
            edits.insert("todos", f"{name} t2", {"n": 2}).unwrap()

    assert _error(client.push()).code == "UNREACHABLE"  # the first one alone

    statuses = [entry.status for entry in client.pending().unwrap()]
    assert statuses == [Status.SENT, Status.SENT, Status.PENDING, Status.PENDING]
    check_sound(client)


@pytest.mark.law("U7")
def test_each_pull_reports_the_number_of_quarantined_edits(both: World) -> None:
    reported: list[int | None] = []
    real: Callable[[str, Pull], PullPage] = both.gateway.pull

    def pull(gateway: str, asked: Pull) -> PullPage:
        reported.append(asked.quarantined)
        return real(gateway, asked)

    both.gateway.pull = pull
    both.gateway.only_text_in("strict")
    client = both.client()
    client.pull().unwrap()
    bad = client.insert("strict", "r2", {"title": 7}).unwrap()
    client.sync().unwrap()
    client.discard(bad.delta_id).unwrap()
    client.sync().unwrap()

    assert [reported[0], reported[1], reported[-1]] == [0, 1, 0]
