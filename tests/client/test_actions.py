"""Actions that an app asks for: queued, sent behind their edits, ended once, told to who waits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import ActionStatus, Client, ClientStatus, Fault, MemoryTransport, SyncLoop
from lakesync.client.storage import action_queue
from lakesync.client.storage.action_queue import RETRY_MS_MAX, RETRY_MS_MIN, SENT_AGAIN_MS_MAX
from lakesync.client.storage.outbox import system_clock
from lakesync.errors import (
    ActionFailed,
    ActionInvalid,
    BodyTooLarge,
    Conflict,
    LakeSyncError,
    NotFound,
    SchemaMismatch,
    TransactionOpen,
    Unavailable,
    Unreachable,
    ValidationFailed,
)
from lakesync.result import Err, Ok, Result
from tests.client.support.acting import Shop, until
from tests.client.support.world import World, check_sound, reopened
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.core.messages import ActionPush

SOON_S = PATIENCE_S


@pytest.fixture
def shop(world: World) -> Shop:
    return Shop(world)


def opened(shop: Shop, **options: Any) -> Client:
    return shop.world.client(**({"transport": shop.transport()} | options))


def ship(client: Client, order: object = 7, **options: Any) -> str:
    return client.actions.run("shipping", "ship", {"order": order}, **options).unwrap().action_id


def error_of(result: Result[Any, LakeSyncError]) -> LakeSyncError:
    assert isinstance(result, Err)
    return result.error


# --- queued, and sent once ------------------------------------------------------------------------


@pytest.mark.law("X11")
def test_a_queued_action_survives_a_restart_and_is_sent_once_by_the_next_sync(shop: Shop) -> None:
    client = opened(shop)
    first, second = ship(client, 1), ship(client, 2)
    client = reopened(shop.world, client, transport=shop.transport())
    pending = client.actions.pending().unwrap()
    assert [(entry.action_id, entry.params, entry.status) for entry in pending] == [
        (first, {"order": 1}, ActionStatus.WAITING),
        (second, {"order": 2}, ActionStatus.WAITING),
    ]

    summary = client.sync().unwrap()

    assert shop.orders == [1, 2]
    assert (summary.acted.done, summary.acted.dead, summary.acted.later) == (2, 0, 0)
    assert client.actions.pending().unwrap() == []
    queued = client.actions.find(second).unwrap()
    assert queued.result(0) == Ok({"shipment": 2})
    assert queued.entry().unwrap().attempts == 1
    client.sync().unwrap()
    assert shop.orders == [1, 2]


@pytest.mark.law("X11")
@pytest.mark.parametrize(
    "fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.DUPLICATE, Fault.DELAY]
)
def test_an_action_resent_after_a_network_fault_is_identical_and_runs_once(
    shop: Shop, fault: Fault
) -> None:
    transport = shop.transport()
    client = opened(shop, transport=transport)
    action_id = ship(client)
    transport.faults.append(fault)

    result = client.actions.send()

    if fault is not Fault.DUPLICATE:
        assert isinstance(error_of(result), Unreachable)
        assert isinstance(client.status.last_error, Unreachable)
        assert client.actions.pending().unwrap()[0].status is ActionStatus.SENT
    client = reopened(shop.world, client, transport=transport)
    client.sync().unwrap()
    assert client.actions.find(action_id).unwrap().result(0) == Ok({"shipment": 1})
    assert shop.orders == [7]
    sent = [action for push in shop.pushes for action in push.actions]
    assert len(set(map(repr, sent))) == 1, "the same in the same words"


@pytest.mark.law("X11")
def test_an_unavailable_action_is_retried_with_growing_waits_up_to_a_maximum(shop: Shop) -> None:
    client = opened(shop)
    shop.fails += [Unavailable("busy")] * 12
    action_id = ship(client)
    waits = []
    while not shop.shipped:
        assert client.sync().unwrap().acted.done == len(shop.shipped)
        due_s = client.actions.due_s()
        if due_s is not None:
            waits.append(round(due_s * 1000))
            entry = client.actions.pending().unwrap()[0]
            assert (entry.code, entry.status) == ("UNAVAILABLE", ActionStatus.SENT)
            shop.world.clock.ms += waits[-1] - 1
            client.sync().unwrap()
            assert len(shop.pushes) == len(waits), "it is not sent before it is due"
            shop.world.clock.ms += 1
    assert len(waits) == 12
    assert waits[0] >= RETRY_MS_MIN
    assert all(wait <= RETRY_MS_MAX for wait in waits)
    assert waits[-1] >= RETRY_MS_MAX / 2
    assert client.actions.find(action_id).unwrap().entry().unwrap().attempts == 13


@pytest.mark.law("X11")
def test_a_clock_set_back_does_not_delay_the_retry_of_an_action(shop: Shop) -> None:
    client = opened(shop)
    shop.fails.append(Unavailable("busy"))
    ship(client)
    client.sync().unwrap()
    shop.world.clock.ms -= 3_600_000
    client.sync().unwrap()
    assert shop.orders == [7]


@pytest.mark.law("X11")
def test_an_unanswered_action_too_old_to_resend_becomes_a_dead_letter_of_unknown_outcome(
    shop: Shop,
) -> None:
    transport = shop.transport()
    client = opened(shop, transport=transport)
    sent, waiting = ship(client, 1), ""
    transport.faults.append(Fault.LOSE_ANSWER)
    client.actions.send()
    waiting = ship(client, 2)

    shop.world.clock.ms += SENT_AGAIN_MS_MAX
    client.sync().unwrap()

    (dead,) = client.actions.dead_letters().unwrap()
    assert (dead.action_id, dead.code) == (sent, "UNKNOWN_OUTCOME")
    assert client.actions.find(waiting).unwrap().result(0) == Ok({"shipment": 2})
    assert shop.orders == [1, 2]


@pytest.mark.law("X11")
def test_an_invalid_action_is_an_err_and_is_not_queued(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = opened(shop)
    run = client.actions.run
    wrong: list[Any] = [
        run("", "ship"),
        run("shipping", ""),
        run("shipping", "ship", [1]),  # type: ignore[arg-type]
        run("shipping", "ship", {"x": object()}),
        run("shipping", "ship", {"x": "y" * 70_000}),
        run("shipping", "ship", idempotency_key="k" * 200),
    ]
    assert all(isinstance(error_of(result), ActionInvalid) for result in wrong)
    assert client.actions.pending().unwrap() == []
    monkeypatch.setattr(action_queue, "QUEUED_MAX", 1)
    ship(client)
    assert error_of(run("shipping", "ship")).code == "BACKPRESSURE_ERROR"


@pytest.mark.law("X11")
def test_a_refused_action_request_makes_only_the_action_at_fault_a_dead_letter(shop: Shop) -> None:
    def whole(push: ActionPush) -> None:
        if any(action.params["order"] == 3 for action in push.actions):  # type: ignore[union-attr]
            raise BodyTooLarge("too large")

    client = opened(shop)
    ids = [ship(client, order) for order in range(8)]
    shop.whole = whole
    client.sync().unwrap()
    assert sorted(map(int, map(str, shop.orders))) == [0, 1, 2, 4, 5, 6, 7]
    (dead,) = client.actions.dead_letters().unwrap()
    assert (dead.action_id, dead.code) == (ids[3], "BODY_TOO_LARGE")


def test_a_sync_pushes_edits_although_the_gateway_runs_no_actions(world: World) -> None:
    client = world.client()  # whose gateway runs none
    client.insert("todos", "t1", {}).unwrap()
    ship(client)
    error = error_of(client.sync())
    assert isinstance(error, NotFound)
    assert error.done.pushed.accepted == 1
    assert client.pending().unwrap() == []


# --- behind edits ---------------------------------------------------------------------------------


@pytest.mark.law("X12")
def test_an_action_is_sent_only_after_the_edits_before_it_are_accepted(shop: Shop) -> None:
    transport = shop.transport()
    client = opened(shop, transport=transport)
    client.insert("todos", "t1", {}).unwrap()
    ship(client, "behind")
    ship(client, "at once", after_edits=False)
    client.actions.send().unwrap()
    assert shop.orders == ["at once"]
    client.insert("todos", "t2", {}).unwrap()
    transport.faults += [Fault.NONE]

    client.sync().unwrap()

    assert shop.orders == ["at once", "behind"]


@pytest.mark.law("X12")
def test_an_edit_made_after_an_action_does_not_delay_the_action(shop: Shop) -> None:
    client = opened(shop)
    ship(client)
    client.insert("todos", "t1", {}).unwrap()
    client.actions.send().unwrap()
    assert shop.orders == [7]


@pytest.mark.law("X12")
def test_a_refused_edit_makes_only_the_actions_that_wait_for_it_dead_letters(shop: Shop) -> None:
    shop.world.gateway.only_text_in("strict")
    client = opened(shop)
    before = ship(client, "before")
    client.insert("strict", "s1", {"title": 7}).unwrap()
    behind = ship(client, "behind")
    regardless = ship(client, "regardless", after_edits=False)

    client.sync().unwrap()

    assert shop.orders == ["before", "regardless"]
    (dead,) = client.actions.dead_letters().unwrap()
    assert (dead.action_id, dead.code) == (behind, "EDIT_REFUSED")
    assert "SCHEMA_ERROR" in dead.reason
    assert client.actions.find(before).unwrap().result(0) == Ok({"shipment": 1})
    assert client.actions.find(regardless).unwrap().result(0) == Ok({"shipment": 2})
    # What was set aside before is no edit that a new action waits for.
    ship(client, "new")
    client.sync().unwrap()
    assert shop.orders[2:] == ["new"]
    (refused,) = client.quarantined().unwrap()
    client.amend(refused.delta.delta_id, {"title": "x"}).unwrap()
    client.actions.retry(behind).unwrap()
    client.sync().unwrap()
    assert shop.orders[3:] == ["behind"]


@pytest.mark.law("X12")
def test_an_action_that_waits_for_an_edit_of_a_refused_push_becomes_a_dead_letter(
    shop: Shop,
) -> None:
    client = opened(shop)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    behind = ship(client)

    def refuses(_gateway: str, push: Any) -> Any:
        if push.deltas:
            raise ValidationFailed("no such push")
        return answers(_gateway, push)

    answers = shop.world.gateway.push
    shop.world.gateway.push = refuses
    client.sync().unwrap()

    assert client.actions.dead_letters().unwrap()[0].action_id == behind
    assert shop.orders == []


@pytest.mark.law("X12")
def test_an_action_still_waits_for_edits_that_are_restamped(shop: Shop) -> None:
    ahead = shop.world.clock.ms + 3_600_000
    client = opened(shop, wall_clock=lambda: ahead)
    rows_then: list[int] = []
    shop.before = lambda _: rows_then.append(len(shop.world.rows()))
    client.insert("todos", "t1", {}).unwrap()
    client.insert("todos", "t2", {}).unwrap()
    ship(client)
    client.insert("todos", "t3", {}).unwrap()

    pushed = client.push().unwrap()
    assert pushed.restamped
    client.insert("todos", "t4", {}).unwrap()
    client.actions.send().unwrap()

    assert rows_then == [3]
    assert shop.orders == [7]


def _refused(client: Client) -> None:
    """Queue what is no action in a transaction, and do not look."""
    with client.transaction() as tx:
        tx.insert("orders", "o2", {}).unwrap()
        tx.run_action("", "ship")


@pytest.mark.law("X12")
def test_an_action_of_a_transaction_is_queued_with_its_edits_or_not_at_all(shop: Shop) -> None:
    client = opened(shop)

    def fails() -> None:
        with client.transaction() as tx:
            tx.insert("orders", "o1", {}).unwrap()
            tx.run_action("shipping", "ship", {"order": 1}).unwrap()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with pytest.raises(ActionInvalid):
        _refused(client)
    assert client.actions.pending().unwrap() == []
    assert client.pending().unwrap() == []
    with client.transaction() as tx:
        action_id = tx.run_action("shipping", "ship", {"order": 3}).unwrap()
        assert isinstance(error_of(client.actions.run("shipping", "ship")), TransactionOpen)
        assert isinstance(error_of(client.actions.send()), TransactionOpen)
    client.sync().unwrap()
    assert client.actions.find(action_id).unwrap().result(0) == Ok({"shipment": 1})


# --- how it ended ---------------------------------------------------------------------------------


@pytest.mark.law("X13")
def test_the_result_of_an_action_reaches_its_waiter_its_callback_and_its_table(shop: Shop) -> None:
    client = opened(shop)
    reported: list[Any] = []
    watched: list[str] = []
    watch = client.watch("SELECT status FROM _lakesync_actions")
    queued = client.actions.run(
        "shipping", "ship", {"order": 1}, on_result=reported.append
    ).unwrap()
    assert error_of(queued.result(0.01)).code == "ACTION_RUNNING"
    waiting: list[Any] = []
    waiter = threading.Thread(target=lambda: waiting.append(queued.result(SOON_S)))
    waiter.start()

    client.sync().unwrap()
    client.sync().unwrap()

    waiter.join()
    until(lambda: len(reported) == 1)
    while watched[-1:] != ["done"]:
        watched += [row["status"] for row in watch.next(SOON_S) or []]
    assert waiting == reported == [Ok({"shipment": 1})]
    rows = client.query("SELECT data, params FROM _lakesync_actions").unwrap()
    assert rows == [{"data": '{"shipment":1}', "params": '{"order":1}'}]
    client.insert("todos", "t1", {}).unwrap()
    assert reported == [Ok({"shipment": 1})], "once"


@pytest.mark.law("X13")
def test_a_failed_action_is_a_dead_letter_until_it_is_retried_or_discarded(shop: Shop) -> None:
    client = opened(shop)
    shop.fails += [ActionFailed("no such order"), ActionFailed("still not")]
    reported: list[Any] = []
    first = ship(client, 1, on_result=reported.append, idempotency_key="k")
    second = ship(client, 2)
    assert client.sync().unwrap().acted.dead == 2
    until(lambda: len(reported) == 1)
    error = error_of(reported[0])
    assert (type(error), str(error)) == (ActionFailed, "no such order")
    client = reopened(shop.world, client, transport=shop.transport())
    assert client.status.actions_dead == 2
    client.sync().unwrap()
    assert shop.orders == [], "what is final is not sent again"

    again = client.actions.retry(first).unwrap()

    assert again.action_id != first
    assert isinstance(error_of(client.actions.find(first)), NotFound)
    assert isinstance(error_of(client.actions.retry(first)), NotFound)
    assert client.actions.discard(second).unwrap().params == {"order": 2}
    client.sync().unwrap()
    assert again.result(0) == Ok({"shipment": 1})
    assert client.actions.dead_letters().unwrap() == []
    assert isinstance(error_of(client.actions.retry(again.action_id)), NotFound)


@pytest.mark.law("X13")
def test_a_discarded_action_is_not_sent_and_its_result_is_not_found(shop: Shop) -> None:
    client = opened(shop)
    reported: list[Any] = []
    queued = client.actions.run("shipping", "ship", on_result=reported.append).unwrap()
    client.actions.discard(queued.action_id).unwrap()
    client.sync().unwrap()
    assert isinstance(error_of(queued.result(SOON_S)), NotFound)
    assert isinstance(error_of(client.actions.discard(queued.action_id)), NotFound)
    assert (shop.shipped, reported) == ([], [])


@pytest.mark.law("X13")
def test_clearing_actions_drops_queued_ones_and_keeps_the_results_of_done_ones(shop: Shop) -> None:
    client = opened(shop)
    done = client.actions.run("shipping", "ship", {"order": 1}).unwrap()
    client.sync().unwrap()
    queued = client.actions.run("shipping", "ship", {"order": 2}).unwrap()
    assert client.actions.clear() == Ok(1)
    assert client.actions.clear() == Ok(0)
    client.sync().unwrap()

    assert isinstance(error_of(queued.result(SOON_S)), NotFound)
    assert done.result(0) == Ok({"shipment": 1})
    assert len(shop.shipped) == 1
    assert (client.actions.pending(), client.actions.dead_letters()) == (Ok([]), Ok([]))


@pytest.mark.law("X13")
def test_an_action_sent_by_another_process_with_the_same_file_reports_its_result(
    shop: Shop,
) -> None:
    client, other = opened(shop), opened(shop)
    reported: list[Any] = []
    queued = client.actions.run(
        "shipping", "ship", {"order": 1}, on_result=reported.append
    ).unwrap()
    other.sync().unwrap()
    assert queued.result(SOON_S) == Ok({"shipment": 1})
    until(lambda: len(reported) == 1)


@pytest.mark.law("X13")
def test_closing_a_client_ends_the_wait_for_an_action_with_an_error(shop: Shop) -> None:
    client = opened(shop)
    queued = client.actions.run("shipping", "ship").unwrap()
    waiting: list[Any] = []
    waiter = threading.Thread(target=lambda: waiting.append(queued.result()))
    waiter.start()
    client.close()
    waiter.join(SOON_S)
    assert error_of(waiting[0]).code == "VALIDATION_ERROR"
    assert isinstance(error_of(client.actions.run("shipping", "ship")), ValidationFailed)


@pytest.mark.law("X13")
def test_only_the_latest_action_results_and_all_dead_letters_are_kept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_queue, "DONE_KEPT_MAX", 3)
    client = opened(shop)
    shop.fails.append(ActionFailed("no"))
    for order in range(8):
        ship(client, order)
    client.sync().unwrap()
    rows = client.query("SELECT status, params FROM _lakesync_actions ORDER BY place").unwrap()
    assert [row["status"] for row in rows] == ["dead", "done", "done", "done"]
    assert rows[-1]["params"] == '{"order":7}'


@pytest.mark.law("X13")
def test_the_sync_loop_sends_an_action_at_once_and_retries_it_when_due(shop: Shop) -> None:
    client = shop.world.client(transport=shop.transport(), wall_clock=system_clock)
    shop.fails += [Unavailable("busy")]
    with SyncLoop(client, every_s=3_600):
        assert client.actions.run("shipping", "ship", {"order": 1}).unwrap().result(SOON_S) == Ok(
            {"shipment": 1}
        )
    assert len(shop.pushes) == 2


@pytest.mark.law("X13")
def test_a_client_discovers_the_actions_that_its_gateway_offers(shop: Shop, world: World) -> None:
    (described,) = opened(shop).actions.discover().unwrap()["shipping"]
    assert (described.action_type, described.description) == ("ship", "Ships.")
    assert isinstance(error_of(world.client("b").actions.discover()), NotFound)

    class Mute:
        push = pull = MemoryTransport.push

    mute = world.client("c", transport=Mute())
    assert error_of(mute.actions.discover()).code == "METHOD_NOT_ALLOWED"


# --- kept -----------------------------------------------------------------------------------------


@pytest.mark.law("X14")
def test_the_status_counts_pending_and_dead_actions(shop: Shop) -> None:
    client = opened(shop)
    ship(client)
    assert client.status == ClientStatus(actions_pending=1)
    shop.fails.append(ActionFailed("no"))
    client.sync().unwrap()
    assert (client.status.actions_pending, client.status.actions_dead) == (0, 1)


@pytest.mark.law("X14")
def test_a_wipe_is_refused_while_actions_wait_or_are_dead_letters(shop: Shop) -> None:
    client = opened(shop)
    dead = ship(client)
    shop.fails.append(ActionFailed("no"))
    client.sync().unwrap()
    waiting = ship(client)
    error = error_of(client.wipe())
    assert isinstance(error, Conflict)
    assert "1 action waits, 1 action is a dead letter" in str(error)
    client.actions.discard(dead).unwrap()
    client.actions.discard(waiting).unwrap()
    client.wipe().unwrap()
    assert list(shop.world.folder.iterdir()) == []


def test_a_file_of_a_release_without_actions_gets_the_actions_table_when_opened(shop: Shop) -> None:
    client = opened(shop)
    with client._file.database.transaction() as connection:
        connection.execute("DROP TABLE _lakesync_actions")
    client = reopened(shop.world, client, transport=shop.transport())
    ship(client)
    client.sync().unwrap()
    assert shop.orders == [7]
    check_sound(client)


def test_an_action_behind_an_edit_with_a_schema_error_reports_edit_refused(shop: Shop) -> None:
    shop.world.gateway.judge = lambda delta: SchemaMismatch("no") if delta.row_id == "bad" else None
    client = opened(shop)
    client.insert("todos", "bad", {}).unwrap()
    reported: list[Any] = []
    ship(client, on_result=reported.append)
    client.sync().unwrap()
    until(lambda: len(reported) == 1)
    assert error_of(reported[0]).code == "EDIT_REFUSED"
