"""Frames on their way: paced, and slow readers are poked, then closed with a code."""

from __future__ import annotations

import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from lakesync.buffer.connections import ItemConnections
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.errors import AdapterRefused, LakeSyncError, Revoked, Unavailable, Unreachable
from lakesync.gateway.frame_sending import (
    LATE_S,
    SENT_PER_S_MAX,
    SLOW_TIMES_MAX,
    FrameSender,
    Outgoing,
)
from lakesync.ports import Connection, FrameResult
from lakesync.runtime.websocket_frames import notify_handler
from tests.support.gateways import GATEWAY
from tests.support.sockets import FakeSockets


class World:
    """Connections, and a clock that only waiting moves."""

    def __init__(self, readers: int, sockets: FakeSockets | None = None) -> None:
        self.sockets = sockets or FakeSockets()
        self.connections = ItemConnections(MemoryItemStore())
        self.now_s = 0.0
        self.failures: list[LakeSyncError] = []
        self.sender = FrameSender(
            self.sockets,
            self.connections,
            seconds=lambda: self.now_s,
            sleep_s=self._sleep,
            on_failure=self.failures.append,
        )
        self.open = [
            Connection(GATEWAY, f"c{number}", "ann", "ann", 4e9, 0, {}) for number in range(readers)
        ]
        for connection in self.open:
            self.connections.add(connection)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def send(self) -> None:
        self.sender.send([Outgoing(one, "frame", "poke") for one in self.open])


@pytest.mark.law("T5")
def test_frames_are_sent_at_a_bounded_rate() -> None:
    world = World(3 * SENT_PER_S_MAX)
    world.send()

    assert 2.5 < world.now_s <= 3
    assert all(world.sockets.sent[one.id] == ["frame"] for one in world.open)


@pytest.mark.law("T5")
def test_connection_that_is_gone_is_forgotten() -> None:
    world = World(3)
    world.sockets.gone.add("c1")
    world.send()

    remembered, _ = world.connections.of_gateway(GATEWAY)
    assert [one.id for one in remembered] == ["c0", "c2"]


@pytest.mark.law("T5")
def test_connection_that_is_slow_too_often_is_closed() -> None:
    world = World(30)
    world.sockets.busy.add("c1")
    for _ in range(SLOW_TIMES_MAX - 1):
        world.send()
    assert world.sockets.closed == []
    world.send()

    assert world.sockets.closed == ["c1"]
    assert world.connections.get(GATEWAY, "c1") is None


@pytest.mark.law("T5")
def test_connection_that_catches_up_resets_its_count_of_slow_sends() -> None:
    world = World(30)
    for _ in range(2 * SLOW_TIMES_MAX):
        world.sockets.busy ^= {"c1"}
        world.send()

    assert world.sockets.closed == []


@pytest.mark.law("T5")
def test_no_connection_is_closed_as_slow_while_many_are_busy() -> None:
    world = World(30)
    world.sockets.busy |= {one.id for one in world.open[:10]}
    for _ in range(2 * SLOW_TIMES_MAX):
        world.send()

    assert world.sockets.closed == []


FAILURES = [
    Unavailable("API Gateway fails (HTTP 500)"),
    Unreachable("no answer came back"),
    AdapterRefused("API Gateway refused POST of a connection: HTTP 403"),
]


@pytest.mark.law("T5")
@pytest.mark.parametrize("failure", FAILURES)
def test_failed_frame_does_not_prevent_the_others_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, failure: LakeSyncError
) -> None:
    world = World(300)
    send = world.sockets.send

    def failing(connection_id: str, frame: str) -> object:
        if connection_id in {"c0", "c7"}:
            raise failure
        return send(connection_id, frame)

    monkeypatch.setattr(world.sockets, "send", failing)
    world.send()

    reached = [one.id for one in world.open if world.sockets.sent[one.id] == ["frame"]]
    assert reached == [one.id for one in world.open if one.id not in {"c0", "c7"}]
    assert world.failures == [failure], "it is told of once"


@pytest.mark.law("T5")
def test_failure_to_forget_a_connection_does_not_prevent_other_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(30)
    world.sockets.gone.add("c1")

    def failing(gateway: str, connection_id: str) -> None:
        raise Unavailable("DynamoDB is away")

    monkeypatch.setattr(world.connections, "remove", failing)
    world.send()

    assert sum(frames == ["frame"] for frames in world.sockets.sent.values()) == 29
    assert [error.code for error in world.failures] == ["UNAVAILABLE"]


class Late(FakeSockets):
    """Sockets of which one has its frame under way until it is released."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.released = threading.Event()

    def send(self, connection_id: str, frame: str) -> FrameResult:
        if connection_id == self.name:
            assert self.released.wait(30)
        return super().send(connection_id, frame)


def late_world(readers: int) -> tuple[World, Late]:
    """Return a world in which the frames of ``c1`` are late."""
    sockets = Late("c1")
    return World(readers, sockets), sockets


@pytest.mark.law("T5")
@pytest.mark.parametrize("readers", [2, 30, 500])
def test_late_frame_does_not_delay_other_connections_and_is_followed_by_one_poke(
    readers: int,
) -> None:
    world, sockets = late_world(readers)
    try:
        for times in range(1, 4):
            world.send()
            others = [sockets.sent[one.id] for one in world.open if one.id != "c1"]
            assert others == [["frame"] * times] * (readers - 1)
            assert not sockets.sent["c1"]
    finally:
        sockets.released.set()
    world.sender.drain()
    assert sockets.sent["c1"] == ["frame", "poke"], "what came meanwhile is gathered"
    world.send()
    assert sockets.sent["c1"] == ["frame", "poke", "frame"], "and nothing once it is there"
    assert LATE_S <= 0.05


@pytest.mark.law("T5")
def test_late_frame_to_a_busy_connection_is_followed_by_a_poke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, sockets = late_world(3)
    monkeypatch.setattr(sockets, "busy", OnceIn("c1"))
    world.send()
    world.now_s += 1
    sockets.released.set()
    world.sender.drain()
    assert sockets.sent["c1"] == ["poke"]


class OnceIn(set[str]):
    """A set that has one member, until it was asked for it."""

    def __init__(self, name: str) -> None:
        super().__init__({name})

    def __contains__(self, name: object) -> bool:
        is_in = super().__contains__(name)
        self.discard(str(name))
        return is_in


@pytest.mark.law("T5")
def test_late_frame_that_fails_forgets_only_its_connection() -> None:
    world, sockets = late_world(3)
    world.send()
    sockets.gone.add("c1")
    world.send()
    sockets.released.set()
    world.sender.drain()
    remembered, _ = world.connections.of_gateway(GATEWAY)
    assert [one.id for one in remembered] == ["c0", "c2"]


@pytest.mark.law("T5")
@pytest.mark.parametrize("event", [{"Records": []}, {}])
def test_notify_function_drains_its_frames_also_when_it_fails(event: dict[str, Any]) -> None:
    drained = []
    broadcaster: Any = SimpleNamespace(drain=lambda: drained.append(True))
    with pytest.raises((AttributeError, IndexError)):
        notify_handler(broadcaster, SimpleNamespace())(event, None)  # type: ignore[arg-type]
    assert drained == [True]


@pytest.mark.law("T5")
def test_sending_without_enough_time_skips_only_the_last_frames() -> None:
    world = World(1_000)
    outgoing = [Outgoing(one, "frame", "poke") for one in world.open]
    asked = count()
    sent = world.sender.send(outgoing, lambda: next(asked) < 450)

    assert 400 < sent <= 450
    reached = [bool(world.sockets.sent[one.id]) for one in world.open]
    assert reached == [True] * sent + [False] * (1_000 - sent)


@pytest.mark.law("T5")
def test_sending_rate_drops_while_the_account_is_busy_and_recovers_afterwards() -> None:
    world = World(2_000)
    world.sockets.busy |= {one.id for one in world.open}
    world.send()
    assert world.now_s > 5
    world.sockets.busy.clear()
    for _ in range(2):
        world.send()
    before_s = world.now_s
    world.send()

    assert world.now_s - before_s <= 2_000 / SENT_PER_S_MAX


@pytest.mark.law("T6")
@pytest.mark.parametrize("failure", FAILURES)
def test_connection_that_cannot_be_closed_stays_remembered_and_others_are_closed(
    monkeypatch: pytest.MonkeyPatch, failure: LakeSyncError
) -> None:
    world = World(2)
    close = world.sockets.close

    def failing(connection_id: str) -> None:
        if connection_id == "c0":
            raise failure
        close(connection_id)

    monkeypatch.setattr(world.sockets, "close", failing)
    world.sender.refuse([(one, Revoked("revoked")) for one in world.open])

    assert world.connections.get(GATEWAY, "c0") is not None
    assert world.connections.get(GATEWAY, "c1") is None
