"""Frames on their way: paced, and slow readers are poked, then closed with a code."""

from __future__ import annotations

import pytest

from lakesync.buffer.memory_connections import MemoryConnections
from lakesync.errors import Revoked, Unavailable
from lakesync.gateway.delivery import SENT_PER_S_MAX, SLOW_TIMES_MAX, Delivery, Outgoing
from lakesync.ports import Connection
from tests.support.sockets import GATEWAY, FakeSockets


class World:
    """Connections, and a clock that only waiting moves."""

    def __init__(self, count: int) -> None:
        self.sockets = FakeSockets()
        self.connections = MemoryConnections()
        self.now_s = 0.0
        self.delivery = Delivery(
            self.sockets, self.connections, seconds=lambda: self.now_s, sleep_s=self._sleep
        )
        self.open = [
            Connection(GATEWAY, f"c{number}", "ann", "ann", 4e9, 0, {}) for number in range(count)
        ]
        for connection in self.open:
            self.connections.add(connection)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def send(self) -> None:
        """Send a frame to all."""
        self.delivery.send(GATEWAY, [Outgoing(one, "frame", "poke") for one in self.open])


@pytest.mark.law("T5")
def test_frames_are_paced() -> None:
    world = World(3 * SENT_PER_S_MAX)
    world.send()

    assert 2.5 < world.now_s <= 3
    assert all(world.sockets.sent[one.id] == ["frame"] for one in world.open)


@pytest.mark.law("T5")
def test_who_is_gone_is_forgotten() -> None:
    world = World(3)
    world.sockets.gone.add("c1")
    world.send()

    remembered, _ = world.connections.of_gateway(GATEWAY)
    assert [one.id for one in remembered] == ["c0", "c2"]


@pytest.mark.law("T5")
def test_who_is_too_slow_for_too_long_is_closed_with_a_code() -> None:
    world = World(30)
    world.sockets.busy.add("c1")
    for _ in range(SLOW_TIMES_MAX - 1):
        world.send()
    assert world.sockets.closed == []
    world.send()

    assert world.sockets.closed == ["c1"]
    assert world.connections.get(GATEWAY, "c1") is None


@pytest.mark.law("T5")
def test_who_catches_up_begins_to_count_anew() -> None:
    world = World(30)
    for _ in range(2 * SLOW_TIMES_MAX):
        world.sockets.busy ^= {"c1"}
        world.send()

    assert world.sockets.closed == []


@pytest.mark.law("T5")
def test_where_many_are_busy_nobody_is_to_blame() -> None:
    world = World(30)
    world.sockets.busy |= {one.id for one in world.open[:10]}
    for _ in range(2 * SLOW_TIMES_MAX):
        world.send()

    assert world.sockets.closed == []


@pytest.mark.law("T5")
def test_a_frame_without_an_answer_keeps_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    send = world.sockets.send

    def failing(connection_id: str, frame: str) -> object:
        if connection_id == "c0":
            raise Unavailable("nobody answers")
        return send(connection_id, frame)

    monkeypatch.setattr(world.sockets, "send", failing)
    world.send()

    assert world.sockets.sent["c2"] == ["frame"]


@pytest.mark.law("T6")
def test_who_cannot_be_closed_stays_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)

    def failing(connection_id: str) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(world.sockets, "close", failing)
    world.delivery.refuse([(world.open[0], Revoked("shut out"))])

    assert world.connections.get(GATEWAY, "c0") is not None
