"""One file, several threads and several processes; and sync in the background."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client, MemoryTransport, SyncLoop
from lakesync.result import Ok, Result
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import World, check_sound, rows_of
from tests.support.some import some
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import SyncSummary
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.errors import LakeSyncError


class OneAtATime:
    """The world's gateway behind a lock: the naive one knows no threads."""

    def __init__(self, world: World) -> None:
        self.gateway, self.lock = world.gateway, threading.Lock()

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Push in turn."""
        with self.lock:
            receipt: PushReceipt = self.gateway.push(gateway, push)
            return receipt

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Pull in turn."""
        with self.lock:
            page: PullPage = self.gateway.pull(gateway, pull)
            return page


def in_threads(*bodies: object) -> None:
    """Run functions at the same time and raise what any of them raised."""
    failures: list[BaseException] = []

    def run(body: object) -> None:
        try:
            body()  # type: ignore[operator]
        except BaseException as exc:  # noqa: BLE001 - raised again by the caller
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if failures:
        raise failures[0]


@pytest.mark.law("K2")
def test_edits_of_several_threads_during_background_syncs_all_reach_the_gateway(
    both: World,
) -> None:
    service = OneAtATime(both)
    client = both.client(transport=MemoryTransport(GATEWAY, service, service))
    other = both.client("other", transport=MemoryTransport(GATEWAY, service, service))

    def edit(name: str) -> None:
        for place in range(60):
            client.insert("todos", f"{name}{place}", {"by": name, "n": place}).unwrap()
            with client.transaction() as edits:
                edits.update("todos", f"{name}{place}", {"n": -place}).unwrap()
                edits.update("todos", "shared", {name: place}).unwrap()

    def interfere() -> None:
        for place in range(30):
            other.update("todos", "shared", {"other": place}).unwrap()
            other.sync().unwrap()

    def read() -> None:
        for _ in range(200):
            client.query("SELECT count(*) FROM _lakesync_rows").unwrap()
            assert isinstance(client.get("todos", "shared"), Ok)

    results: list[Result[SyncSummary, LakeSyncError]] = []
    with SyncLoop(client, every_s=0.01, on_result=results.append):
        in_threads(lambda: edit("x"), lambda: edit("y"), interfere, read)
    client.sync().unwrap()
    other.sync().unwrap()

    assert all(isinstance(result, Ok) for result in some(results))
    assert len(both.rows()) == 121
    assert rows_of(client) == rows_of(other) == both.rows()
    check_sound(client)


def test_edits_of_another_thread_do_not_join_an_open_transaction(world: World) -> None:
    client = world.client()
    inside, done = threading.Event(), threading.Event()

    def outsider() -> None:
        inside.wait(PATIENCE_S)
        assert client.query("SELECT count(*) AS c FROM _lakesync_outbox").unwrap() == [{"c": 0}]
        done.set()
        client.insert("todos", "outside", {"n": 1}).unwrap()

    def insider() -> None:
        with client.transaction() as edits:
            edits.insert("todos", "inside1", {"n": 1}).unwrap()
            inside.set()
            done.wait(PATIENCE_S)
            edits.insert("todos", "inside2", {"n": 1}).unwrap()

    in_threads(insider, outsider)

    txns = client.query("SELECT row_id, txn FROM _lakesync_outbox ORDER BY hlc").unwrap()
    by_row = {row["row_id"]: row["txn"] for row in txns}
    assert by_row["outside"] is None
    assert by_row["inside1"] == by_row["inside2"] is not None


@pytest.mark.law("K2")
def test_two_processes_may_share_a_file(both: World) -> None:
    """Two clients on one file stand for two processes: they share nothing but the file."""
    service = OneAtATime(both)
    left, right = (
        both.client("shared", transport=MemoryTransport(GATEWAY, service, service))
        for _ in range(2)
    )

    def work(client: Client, name: str) -> None:
        for place in range(40):
            client.insert(f"table_{place % 3}", f"{name}{place}", {f"c{place % 5}": name}).unwrap()
            if place % 4 == 0:
                client.sync().unwrap()

    in_threads(lambda: work(left, "left"), lambda: work(right, "right"))
    left.sync().unwrap()
    right.sync().unwrap()

    stamps = [delta.hlc for delta in both.deltas()]
    assert len(stamps) == len(set(stamps)) == 80
    assert rows_of(left) == rows_of(right) == both.rows()
    check_sound(left)
    check_sound(right)


class Overtaken:
    """A transport that hands a page over only after others have done something."""

    def __init__(self, world: World) -> None:
        self.inner = world.transport()
        self.meanwhile: list[Callable[[], Result[object, LakeSyncError]]] = []

    def push(self, push: Push) -> PushReceipt:
        """Push."""
        return self.inner.push(push)

    def pull(self, pull: Pull) -> PullPage:
        """Pull, slowly."""
        page = self.inner.pull(pull)
        while self.meanwhile:
            self.meanwhile.pop(0)().unwrap()
        return page


@pytest.mark.law("K5")
def test_a_page_overtaken_by_another_process_does_not_move_the_cursor_back(world: World) -> None:
    other = world.client("other")
    other.insert("todos", "t1", {"n": 1}).unwrap()
    other.sync().unwrap()
    other.insert("todos", "t2", {"n": 2}).unwrap()
    slow = Overtaken(world)
    left, right = world.client("shared", transport=slow), world.client("shared")
    slow.meanwhile += [other.sync, right.pull]

    left.pull().unwrap()

    (row,) = left.query("SELECT cursor FROM _lakesync_sync").unwrap()
    assert row["cursor"] == world.gateway.commits[-1][0]
    assert rows_of(left) == world.rows()
