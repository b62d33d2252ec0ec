"""`SyncLoop`: it survives what apps and networks do, gathers edits, and waits patiently."""

from __future__ import annotations

import logging
import socket
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from lakesync.client import Fault, SyncLoop, SyncSummary, waits
from lakesync.client.loop import GATHER_S, GATHER_S_MAX
from lakesync.client.waits import BACKOFF_S_MAX
from lakesync.errors import (
    Backpressure,
    Forbidden,
    LakeSyncError,
    NotTheGateway,
    Unavailable,
    Unreachable,
)
from lakesync.result import Err, Ok, Result
from tests.client.support.world import rows_of
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Client
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from tests.client.support.world import World

Heard = Result[SyncSummary, LakeSyncError]


class Ear:
    """Hears results, and waits for them."""

    def __init__(self, act: Callable[[Heard], None] = lambda _: None) -> None:
        self.results: list[Heard] = []
        self._came = threading.Semaphore(0)
        self._act = act

    def __call__(self, result: Heard) -> None:
        """Hear a result."""
        self.results.append(result)
        self._came.release()
        self._act(result)

    def next(self) -> Heard:
        """Wait for one more."""
        assert self._came.acquire(timeout=PATIENCE_S)
        return self.results[-1]


def eager(monkeypatch: pytest.MonkeyPatch, loop: SyncLoop) -> SyncLoop:
    """Let a loop wait for next to nothing after a failure."""
    monkeypatch.setattr(loop, "backoff_s", lambda _: 0.01)
    return loop


def running(loop: SyncLoop) -> bool:
    return loop._thread is not None and loop._thread.is_alive()


class Raising:
    """A transport that raises what no transport should, so many times."""

    def __init__(self, world: World, *raised: Exception) -> None:
        self._inner = world.transport()
        self._raised = list(raised)

    def push(self, push: Push) -> PushReceipt:
        """Push."""
        return self._inner.push(push)

    def pull(self, pull: Pull) -> PullPage:
        """Raise, or pull."""
        if self._raised:
            raise self._raised.pop(0)
        return self._inner.pull(pull)


@pytest.mark.law("K17")
def test_the_loop_survives_an_exception_in_a_sync_and_reports_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client(transport=Raising(world, KeyError("no such thing"), TypeError("odd")))
    client.insert("todos", "t1", {"n": 1}).unwrap()
    ear = Ear()
    with eager(monkeypatch, SyncLoop(client, on_result=ear)):
        for _ in range(3):
            ear.next()

    assert isinstance(ear.results[0], Err)
    assert ear.results[0].error.code == "INTERNAL_ERROR"
    assert "KeyError" in ear.results[0].error.message
    assert isinstance(ear.results[0].error.__cause__, KeyError)
    assert isinstance(ear.results[1], Err)
    assert isinstance(ear.results[2], Ok)
    assert rows_of(client) == world.rows()


@pytest.mark.law("K17")
def test_the_loop_survives_and_logs_an_exception_in_its_callback(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    client = world.client()

    def fail(_: Heard) -> None:
        raise ZeroDivisionError("the app's mistake")

    ear = Ear(fail)
    with caplog.at_level(logging.ERROR, "lakesync.client"), SyncLoop(client, on_result=ear) as loop:
        ear.next()
        client.insert("todos", "t1", {"n": 1}).unwrap()
        ear.next()
        assert running(loop)

    assert world.rows() == {("todos", "t1"): {"n": 1}}
    assert "the app's mistake" in caplog.text


@pytest.mark.law("K17")
def test_the_loop_survives_pages_that_a_unique_index_of_the_app_refuses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = world.client(), world.client("other")
    client.insert("todos", "mine", {"title": "same"}).unwrap()
    client.sync().unwrap()
    client._file.database.writer.execute("CREATE UNIQUE INDEX own ON todos (title)").close()
    other.insert("todos", "theirs", {"title": "same"}).unwrap()
    other.sync().unwrap()
    ear = Ear()

    with eager(monkeypatch, SyncLoop(client, on_result=ear)):
        assert isinstance(ear.next(), Err)
        assert isinstance(ear.next(), Err)
        with closing(sqlite3.connect(world.folder / "a.db")) as connection:
            connection.execute("DROP INDEX own")
        while not isinstance(ear.next(), Ok):
            pass

    assert rows_of(client) == world.rows()


@pytest.mark.law("K17")
def test_the_loop_can_be_stopped_from_its_own_callback_and_started_again(world: World) -> None:
    client = world.client()
    ear = Ear(lambda _: loop.stop())
    loop = SyncLoop(client, every_s=0.01, on_result=ear)
    loop.start()
    ear.next()
    thread = loop._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(ear.results) == 1

    client.insert("todos", "t1", {"n": 1}).unwrap()
    loop.start()
    ear.next()
    loop.stop()

    assert len(ear.results) == 2
    assert world.rows() == {("todos", "t1"): {"n": 1}}


def test_a_running_loop_is_not_started_twice(world: World) -> None:
    ear = Ear()
    loop = SyncLoop(world.client(), every_s=600, on_result=ear)
    loop.start()
    thread = loop._thread
    loop.start()
    assert loop._thread is thread
    loop.stop()
    assert not running(loop)


def test_a_loop_that_never_started_can_be_stopped(world: World) -> None:
    SyncLoop(world.client()).stop()


@pytest.mark.law("K17")
def test_a_waiting_loop_can_be_woken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = world.transport()
    transport.faults.append(Fault.LOSE_REQUEST)
    ear = Ear()
    loop = SyncLoop(world.client(transport=transport), every_s=600, on_result=ear)
    monkeypatch.setattr(loop, "backoff_s", lambda _: 600)
    with loop:
        assert isinstance(ear.next(), Err)
        loop.wake()
        assert isinstance(ear.next(), Ok)
        loop.wake()
        assert isinstance(ear.next(), Ok)


@pytest.mark.law("K17")
@pytest.mark.parametrize("foreign", [False, True])
def test_a_change_of_network_ends_the_wait_for_an_unreachable_gateway(
    world: World, monkeypatch: pytest.MonkeyPatch, *, foreign: bool
) -> None:
    monkeypatch.setattr(waits, "LOOK_S", 0.01)
    where = ["10.0.0.7"]
    raised = NotTheGateway("a login page") if foreign else Unreachable("away")
    ear = Ear()
    loop = SyncLoop(
        world.client(transport=Raising(world, raised)), every_s=600, on_result=ear,
        network=lambda: where[0],
    )  # fmt: skip
    monkeypatch.setattr(loop, "backoff_s", lambda _: 600)
    with loop:
        assert isinstance(ear.next(), Err)
        where[0] = "192.168.0.9"
        assert isinstance(ear.next(), Ok)


@pytest.mark.law("K17")
def test_a_change_of_network_does_not_shorten_a_wait_for_backpressure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def elsewhere() -> object:
        looks.append(1)
        return object()

    monkeypatch.setattr(waits, "LOOK_S", 0.01)
    ear = Ear()
    loop = SyncLoop(
        world.client(transport=Raising(world, Backpressure("full"))), every_s=600, on_result=ear,
        network=elsewhere,
    )  # fmt: skip
    monkeypatch.setattr(loop, "backoff_s", lambda _: 0.5)
    with loop:
        assert isinstance(ear.next(), Err)
        assert len(looks) == 1
        assert isinstance(ear.next(), Ok)


def test_a_device_without_sockets_has_no_network_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> socket.socket:
        raise OSError("no sockets here")

    assert all(isinstance(each, str) for each in waits.own_addresses())
    monkeypatch.setattr(socket, "socket", none)
    assert waits.own_addresses() == ()


class Gate:
    """A transport whose pages wait for the test."""

    def __init__(self, world: World) -> None:
        self._inner = world.transport()
        self.asked = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.pulls = 0

    def push(self, push: Push) -> PushReceipt:
        """Push."""
        return self._inner.push(push)

    def pull(self, pull: Pull) -> PullPage:
        """Pull, when the test lets it."""
        self.pulls += 1
        self.asked.release()
        assert self.open.acquire(timeout=PATIENCE_S)
        return self._inner.pull(pull)


@pytest.mark.law("K17")
def test_a_stop_takes_effect_between_two_pages(world: World) -> None:
    other = world.client("other")
    for number in range(40):
        other.insert("todos", f"t{number}", {"n": number}).unwrap()
        other.sync().unwrap()
    gate = Gate(world)
    client = world.client(transport=gate, page_deltas=1)
    ear = Ear()
    loop = SyncLoop(client, on_result=ear)
    loop.start()
    assert gate.asked.acquire(timeout=PATIENCE_S)
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    assert loop._stopped.wait(PATIENCE_S)
    for _ in range(100):
        gate.open.release()
    stopping.join(PATIENCE_S)

    assert not running(loop)
    assert gate.pulls == 1
    summary = ear.next().unwrap()
    assert summary.stopped
    assert summary.pulled.pages == 1
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


@pytest.mark.law("K17")
def test_a_sync_reports_its_push_and_its_pull_even_if_one_fails(world: World) -> None:
    other, client = world.client("other"), world.client()
    other.insert("todos", "theirs", {"n": 1}).unwrap()
    other.sync().unwrap()
    client.insert("todos", "mine", {"n": 2}).unwrap()
    world.gateway.push, push = Mock(side_effect=Unavailable("full")), world.gateway.push

    result = client.sync()

    assert isinstance(result, Err)
    done = result.error.done
    assert isinstance(done, SyncSummary)
    assert done.push_error is result.error
    assert done.pull_error is None
    assert done.pulled.deltas == 1

    world.gateway.push = push
    world.gateway.pull = Mock(side_effect=Unavailable("away"))
    result = client.sync()
    assert isinstance(result, Err)
    assert result.error.done.pushed.accepted == 1
    assert result.error.done.push_error is None


def test_a_push_that_fails_midway_reports_how_many_edits_were_accepted(world: World) -> None:
    client = world.client()
    with client.transaction() as edits:
        for number in range(80):
            edits.insert("todos", f"a{number}", {"n": number}).unwrap()
    client.insert("todos", "b", {"n": 1}).unwrap()
    push = world.gateway.push

    def once(*given: Any) -> Any:
        world.gateway.push = Mock(side_effect=Unavailable("full"))
        return push(*given)

    world.gateway.push = once

    result = client.push()

    assert isinstance(result, Err)
    assert result.error.done.accepted == 80


# --- patience -------------------------------------------------------------------------------------


class Times:
    """An event and a clock of a test's own: what is waited for happens as the test says."""

    def __init__(self, *waits: bool) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self._happens = list(waits)

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def wait(self, timeout: float) -> bool:
        """Wait: for nothing, or for half as long."""
        happens = self._happens.pop(0) if self._happens else False
        self.waits.append(timeout)
        self.now_s += timeout / 2 if happens else timeout
        return happens

    def clear(self) -> None:
        """Forget what happened."""

    set = clear

    def is_set(self) -> bool:
        """Tell that nothing happened."""
        return False


def waited(client: Client, times: Times, chance: float = 0.5) -> float:
    """Return how long a loop waits after a sync that went well, in seconds."""
    client.edited = times  # type: ignore[assignment]
    loop = SyncLoop(client, every_s=30, chance=lambda: chance, monotonic_s=times)
    loop._wait_for_edits()
    return times.now_s


def test_the_loop_waits_to_sync_until_edits_pause(world: World) -> None:
    client = world.client()

    assert waited(client, Times(True)) == pytest.approx(15 + GATHER_S)
    assert waited(client, Times(True, True, True)) == pytest.approx(15 + 2 * GATHER_S)


def test_continuous_edits_delay_a_sync_only_up_to_the_maximum(world: World) -> None:
    assert waited(world.client(), Times(*[True] * 1_000)) <= 15 + GATHER_S_MAX


def test_the_poll_interval_varies_at_random_by_ten_percent(world: World) -> None:
    client = world.client()
    waits = [waited(client, Times(), chance) for chance in (0.0, 0.5, 0.999)]

    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(27)
    assert waits[1] == pytest.approx(30)
    assert 32.5 < waits[2] < 33


class Counting:
    """A transport that counts."""

    def __init__(self, world: World) -> None:
        self._inner = world.transport()
        self.requests = 0

    def push(self, push: Push) -> PushReceipt:
        """Push."""
        self.requests += 1
        return self._inner.push(push)

    def pull(self, pull: Pull) -> PullPage:
        """Pull."""
        self.requests += 1
        return self._inner.pull(pull)


def test_a_burst_of_edits_costs_few_requests(world: World) -> None:
    transport = Counting(world)
    client = world.client(transport=transport)
    ear = Ear()
    with SyncLoop(client, every_s=600, on_result=ear):
        ear.next()
        for number in range(50):
            client.insert("todos", "t1", {"text": "x" * number}).unwrap()
        while client.pending().unwrap():
            ear.next()

    assert transport.requests <= 9
    assert rows_of(client) == world.rows()


def test_the_loop_syncs_soon_after_an_edit_and_stops_when_asked(world: World) -> None:
    client = world.client()
    ear = Ear()
    with SyncLoop(client, every_s=600, on_result=ear):
        ear.next()
        client.insert("todos", "t1", {"n": 1}).unwrap()
        ear.next()
        assert client.pending() == Ok([])
    assert world.rows() == {("todos", "t1"): {"n": 1}}


def test_the_loop_continues_after_failed_syncs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = world.transport()
    transport.faults += [Fault.LOSE_REQUEST] * 3
    client = world.client(transport=transport)
    client.insert("todos", "t1", {"n": 1}).unwrap()
    ear = Ear()
    with eager(monkeypatch, SyncLoop(client, on_result=ear)):
        while not isinstance(ear.next(), Ok):
            pass
    assert isinstance(ear.results[0], Err)
    assert world.rows() == {("todos", "t1"): {"n": 1}}


def test_the_loop_backs_off_after_each_failure_and_respects_retry_after(
    world: World,
) -> None:
    loop = SyncLoop(world.client(), chance=lambda: 0.999)
    waits = []
    for _ in range(12):
        loop._failures += 1
        waits.append(loop.backoff_s(Unreachable("away")))
    assert waits == sorted(waits)
    assert waits[0] <= 3.0
    assert BACKOFF_S_MAX * 0.9 < waits[-1] <= BACKOFF_S_MAX

    loop = SyncLoop(world.client("b"), chance=lambda: 0.0)
    assert loop.backoff_s(Unreachable("away")) == 1.0
    assert loop.backoff_s(Backpressure("full")) == 15.0
    assert loop.backoff_s(Backpressure("full", retry_after_s=40)) == 40.0
    assert loop.backoff_s(Backpressure("full", retry_after_s=900)) == 900.0


def test_clients_back_off_for_different_times_after_the_same_error(world: World) -> None:
    """After what waiting does not help, too: a fleet with a wrong token comes one by one."""
    client = world.client()
    for error in (Unreachable("away"), Backpressure("full"), Forbidden("no")):
        waits = []
        for chance in (0.0, 0.25, 0.5, 0.75):
            loop = SyncLoop(client, chance=lambda chance=chance: chance)  # type: ignore[misc]
            loop._failures = 4
            waits.append(loop.backoff_s(error))
        assert len(set(waits)) == 4
        assert max(waits) <= BACKOFF_S_MAX
    assert SyncLoop(client, chance=lambda: 0.0).backoff_s(Forbidden("no")) >= BACKOFF_S_MAX / 2
