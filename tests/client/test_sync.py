"""Push and pull between clients, over the naive gateway and over the real one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from lakesync.client.storage.stored_rows import TOMBSTONE_KEPT_DAYS
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.errors import AtomicPushTooLarge, TransactionOpen
from lakesync.result import Ok
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import check_sound, reopened, rows_of
from tests.support.builders import at_ms

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.core.messages import Pull, PullPage, PushReceipt
    from tests.client.support.world import World

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.mark.law("K5")
def test_pulling_2500_rows_takes_seven_pages_of_400(both: World) -> None:
    for start in range(0, 2_500, 50):
        deltas = [
            make_delta(
                Op.INSERT,
                "todos",
                f"t{place}",
                {"title": f"number {place}", "n": place},
                client_id="feed",
                hlc=at_ms(0, place + 1),
            )
            for place in range(start, start + 50)
        ]
        both.gateway.push(GATEWAY, Push("feed", tuple(enumerate(deltas))))
    client = both.client(page_deltas=400)

    summary = client.pull().unwrap()

    assert (summary.deltas, summary.rebuilt) == (2_500, False)
    assert summary.pages == 7
    assert client.query("SELECT count(*) AS c, sum(n) AS s FROM todos").unwrap() == [
        {"c": 2_500, "s": sum(range(2_500))}
    ]
    assert rows_of(client) == both.rows()
    assert client.pull().unwrap().deltas == 0
    check_sound(client)


def test_a_pull_asks_for_a_page_up_to_the_clients_last_push(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load a page may end before the newest commit; never before the reader's own."""
    client = both.client()
    pushed: list[int] = []
    asked: list[int] = []
    push, pull = both.gateway.push, both.gateway.pull

    def watched_push(gateway: str, request: Push) -> PushReceipt:
        receipt: PushReceipt = push(gateway, request)
        pushed.append(receipt.server_hlc)
        return receipt

    def watched_pull(gateway: str, request: Pull) -> PullPage:
        asked.append(request.at_least)
        page: PullPage = pull(gateway, request)
        return page

    monkeypatch.setattr(both.gateway, "push", watched_push)
    monkeypatch.setattr(both.gateway, "pull", watched_pull)
    client.sync().unwrap()
    client.insert("todos", "t1", {"title": "milk"}).unwrap()
    client.sync().unwrap()

    assert asked == [0, *pushed]
    check_sound(client)


@pytest.mark.law("K6")
def test_an_edit_made_offline_last_week_reaches_a_client_that_pulled_yesterday(
    both: World,
) -> None:
    early, late = both.client("early"), both.client("late")
    late.insert("todos", "t1", {"title": "made last week"}).unwrap()
    both.clock.ms += WEEK_MS
    early.insert("todos", "t2", {"title": "made yesterday"}).unwrap()
    early.sync().unwrap()
    both.clock.ms += WEEK_MS // 7

    late.sync().unwrap()
    early.sync().unwrap()

    assert early.get("todos", "t1").unwrap() == {"title": "made last week"}
    assert rows_of(early) == rows_of(late) == both.rows()


@pytest.mark.law("K6")
def test_pending_local_columns_survive_a_pull(both: World) -> None:
    mine, other = both.client("mine"), both.client("other")
    mine.insert("todos", "t1", {"title": "first", "done": False, "n": 1}).unwrap()
    mine.sync().unwrap()
    other.sync().unwrap()
    both.clock.ms += 1_000
    other.update("todos", "t1", {"done": True, "n": 2}).unwrap()
    other.sync().unwrap()
    both.clock.ms += 1_000
    mine.update("todos", "t1", {"title": "mine, pending"}).unwrap()
    mine.insert("todos", "t2", {"title": "new, pending"}).unwrap()

    mine.pull().unwrap()

    assert mine.get("todos", "t1").unwrap() == {"title": "mine, pending", "done": True, "n": 2}
    assert mine.get("todos", "t2").unwrap() == {"title": "new, pending"}
    assert len(mine.pending().unwrap()) == 2
    check_sound(mine)
    mine.sync().unwrap()
    other.sync().unwrap()
    assert rows_of(mine) == rows_of(other) == both.rows()


@pytest.mark.law("K6")
def test_two_clients_that_edit_different_columns_both_keep_their_edit(both: World) -> None:
    airline, airport = both.client("airline"), both.client("airport")
    airline.insert("flights", "AA1", {"departure": 900, "arrival": 1100}).unwrap()
    airline.sync().unwrap()
    airport.sync().unwrap()

    airline.update("flights", "AA1", {"departure": 915}).unwrap()
    airport.update("flights", "AA1", {"arrival": 1130}).unwrap()
    for client in (airline, airport, airline):
        client.sync().unwrap()

    assert airline.get("flights", "AA1") == Ok({"departure": 915, "arrival": 1130})
    assert rows_of(airline) == rows_of(airport) == both.rows()


def test_the_later_of_two_edits_of_a_column_wins_on_every_client(both: World) -> None:
    first, second = both.client("first"), both.client("second")
    first.insert("todos", "t1", {"title": "x"}).unwrap()
    both.clock.ms += 10
    second.insert("todos", "t1", {"title": "y"}).unwrap()
    # The later edit arrives first.
    for client in (second, first, second):
        client.sync().unwrap()

    assert rows_of(first) == rows_of(second) == {("todos", "t1"): {"title": "y"}} == both.rows()


def test_a_delete_reaches_other_clients_and_covers_older_edits(both: World) -> None:
    first, second = both.client("first"), both.client("second")
    first.insert("todos", "t1", {"title": "x", "n": 1}).unwrap()
    first.sync().unwrap()
    second.sync().unwrap()
    both.clock.ms += 10
    first.update("todos", "t1", {"n": 2}).unwrap()
    both.clock.ms += 10
    second.delete("todos", "t1").unwrap()
    for client in (first, second, first):
        client.sync().unwrap()

    assert first.query("SELECT * FROM todos").unwrap() == []
    assert rows_of(first) == rows_of(second) == both.rows() == {}


@pytest.mark.law("K4")
def test_an_edit_of_a_row_just_pulled_wins_although_the_clock_is_behind(both: World) -> None:
    ahead = both.client("ahead")
    behind = both.client("behind", wall_clock=lambda: both.clock.ms - 3_600_000)
    ahead.insert("todos", "t1", {"title": "x"}).unwrap()
    ahead.sync().unwrap()
    behind.pull().unwrap()

    behind.update("todos", "t1", {"title": "seen, then changed"}).unwrap()
    behind.sync().unwrap()
    ahead.sync().unwrap()

    assert ahead.get("todos", "t1").unwrap() == {"title": "seen, then changed"}


@pytest.mark.law("K5")
def test_a_push_never_moves_the_read_cursor(both: World) -> None:
    mine, other = both.client("mine"), both.client("other")
    other.insert("todos", "t1", {"title": "theirs"}).unwrap()
    other.sync().unwrap()
    mine.insert("todos", "t2", {"title": "mine"}).unwrap()

    before = mine.query("SELECT cursor FROM _lakesync_sync").unwrap()
    mine.push().unwrap()

    assert mine.query("SELECT cursor FROM _lakesync_sync").unwrap() == before
    mine.pull().unwrap()
    assert mine.get("todos", "t1").unwrap() == {"title": "theirs"}


def test_many_edits_are_pushed_in_bounded_requests_in_stamp_order(both: World) -> None:
    client = both.client()
    for place in range(1_200):
        client.insert("todos", f"t{place}", {"n": place}).unwrap()

    assert client.push().unwrap().accepted == 1_200

    sizes = [len(push.deltas) for push in both.gateway.pushes]
    assert sizes == [500, 500, 200]
    stamps = [delta.hlc for push in both.gateway.pushes for _, delta in push.deltas]
    assert stamps == sorted(stamps)
    assert client.pending() == Ok([])
    check_sound(client)


def test_a_push_is_bounded_in_bytes(world: World) -> None:
    client = world.client()
    for place in range(10):
        client.insert("todos", f"t{place}", {"text": "x" * 250_000}).unwrap()

    client.push().unwrap()

    assert [len(push.deltas) for push in world.gateway.pushes] == [3, 3, 3, 1]


@pytest.mark.law("K8")
def test_small_transactions_are_pushed_together_in_one_atomic_push(both: World) -> None:
    client = both.client()
    client.insert("todos", "single", {"n": 0}).unwrap()
    for number in range(3):
        with client.transaction() as edits:
            edits.insert("todos", f"a{number}", {"n": 1}).unwrap()
            edits.insert("todos", f"b{number}", {"n": 2}).unwrap()

    assert client.push().unwrap().accepted == 7

    shape = [(push.atomic, len(push.deltas)) for push in both.gateway.pushes]
    assert shape == [(False, 1), (True, 6)]


@pytest.mark.law("K8")
def test_a_transaction_too_large_for_a_commit_is_pushed_edit_by_edit(both: World) -> None:
    client = both.client()
    with client.transaction() as edits:
        for place in range(150):
            edits.insert("todos", f"t{place}", {"n": place}).unwrap()
    client.insert("todos", "after", {"n": 0}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.ungrouped, summary.quarantined) == (151, 1, 0)
    assert rows_of(client) == both.rows()
    check_sound(client)


@pytest.mark.law("K8")
@pytest.mark.parametrize(
    ("name", "bound"), [("TRANSACTION_DELTAS_MAX", 20), ("TRANSACTION_BYTES_MAX", 1_000)]
)
def test_a_transaction_over_the_push_limits_is_never_pushed_atomically(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(f"lakesync.client.storage.outbox.{name}", bound)
    client = world.client()
    with client.transaction() as edits:
        for place in range(30):
            edits.insert("todos", f"t{place}", {"n": place}).unwrap()

    summary = client.push().unwrap()

    assert (summary.accepted, summary.ungrouped) == (30, 1)
    assert [(push.atomic, len(push.deltas)) for push in world.gateway.pushes] == [(False, 30)]


@pytest.mark.law("K8")
def test_small_transactions_too_large_for_one_commit_are_pushed_separately(world: World) -> None:
    client = world.client()
    for number in range(2):
        with client.transaction() as edits:
            for place in range(40):
                edits.insert("todos", f"t{number}-{place}", {"n": place}).unwrap()
    pushes = world.gateway.push

    def small_commits(gateway: str, push: Push) -> object:
        if push.atomic and len(push.deltas) > 50:
            raise AtomicPushTooLarge("too many")
        return pushes(gateway, push)

    world.gateway.push = small_commits
    summary = client.push().unwrap()

    assert (summary.accepted, summary.ungrouped) == (80, 0)
    assert [(push.atomic, len(push.deltas)) for push in world.gateway.pushes] == [
        (True, 40),
        (True, 40),
    ]


@pytest.mark.parametrize("operation", ["push", "pull", "sync"])
def test_push_pull_and_sync_are_refused_inside_a_transaction(world: World, operation: str) -> None:
    client = world.client()
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"n": 1}).unwrap()
        with pytest.raises(TransactionOpen, match="a transaction is open"):
            getattr(client, operation)().unwrap()

    assert world.deltas() == []
    assert len(client.pending().unwrap()) == 1


@pytest.mark.law("K2")
def test_a_restart_at_any_stage_of_an_edit_loses_nothing(both: World) -> None:
    client = both.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client = reopened(both, client)
    assert len(client.pending().unwrap()) == 1
    client.sync().unwrap()
    client = reopened(both, client)
    assert client.pending() == Ok([])
    client.update("todos", "t1", {"title": "y"}).unwrap()
    client = reopened(both, client)
    client.sync().unwrap()

    assert rows_of(client) == {("todos", "t1"): {"title": "y"}} == both.rows()
    check_sound(client)


def test_a_pulled_row_with_reserved_names_can_be_queried(both: World) -> None:
    second = both.client("second")
    columns = {"Title": 1, "order": 3, "_row_id": 4}
    delta = make_delta(Op.INSERT, "Select", "r", columns, client_id="feed", hlc=at_ms(0, 1))
    both.gateway.push(GATEWAY, Push("feed", ((0, delta),)))
    second.sync().unwrap()

    assert second.get("Select", "r").unwrap() == columns
    sql_name = second.sql_name("Select", "_row_id").unwrap()
    assert second.query(f'SELECT "{sql_name}" AS v FROM "Select"').unwrap() == [  # noqa: S608 - our own
        {"v": 4}
    ]
    check_sound(second)


def test_a_sync_without_changes_does_not_write_to_the_file(both: World) -> None:
    client = both.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.sync().unwrap()
    with closing(sqlite3.connect(both.folder / "a.db")) as other:
        (before,) = other.execute("PRAGMA data_version").fetchone()

        assert client.sync().unwrap().pulled.pages == 1

        assert other.execute("PRAGMA data_version").fetchone() == (before,)


def test_an_echo_alone_moves_the_cursor(both: World) -> None:
    client = both.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.push().unwrap()

    assert client.pull().unwrap().deltas == 1  # its own echo
    assert client.pull().unwrap().deltas == 0
    assert client.query("SELECT cursor FROM _lakesync_sync").unwrap()[0]["cursor"] > 0
    check_sound(client)


DAY_MS = 86_400_000


def _kept(client: Client) -> list[str]:
    rows = client.query("SELECT row_id FROM _lakesync_rows ORDER BY 1").unwrap()
    return [row["row_id"] for row in rows]


@pytest.mark.law("K16")
def test_an_old_tombstone_is_removed_from_the_clients_file(world: World) -> None:
    client, other = world.client("a"), world.client("b")
    for row_id in ("t1", "t2", "t3"):
        client.insert("todos", row_id, {"n": 1}).unwrap()
    client.sync().unwrap()
    client.delete("todos", "t1").unwrap()
    client.sync().unwrap()
    other.sync().unwrap()
    world.clock.ms += (TOMBSTONE_KEPT_DAYS - 1) * DAY_MS
    client.delete("todos", "t2").unwrap()
    client.sync().unwrap()
    other.sync().unwrap()
    assert _kept(client) == _kept(other) == ["t1", "t2", "t3"]

    world.clock.ms += 2 * DAY_MS
    client.update("todos", "t3", {"n": 2}).unwrap()
    client.sync().unwrap()
    other.sync().unwrap()

    assert _kept(client) == _kept(other) == ["t2", "t3"]
    check_sound(client)
    world.clock.ms += TOMBSTONE_KEPT_DAYS * DAY_MS
    client.delete("todos", "t3").unwrap()  # and it waits
    other.update("todos", "t4", {"n": 1}).unwrap()
    other.push().unwrap()
    client.pull().unwrap()
    assert _kept(client) == ["t3", "t4"]
    client.sync().unwrap()
    other.sync().unwrap()
    assert rows_of(client) == rows_of(other) == {("todos", "t4"): {"n": 1}}
    check_sound(client)
