"""What devices do: edits as the client makes them, pushed through the deployed push function."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from benchmarks.scale.lambdas import Function
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.runtime import wiring
from lakesync.runtime.settings import PullSettings, PushSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale.measures import Answers
    from benchmarks.scale.world import World
    from lakesync.compat.follower_deltas import FollowingPushes
    from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
    from lakesync.core.clock import Stamp

TABLE: Final = "todos"


class Device:
    """One device: a client id, a clock, and a number for each edit."""

    def __init__(self, world: World, gateway: str, number: int) -> None:
        self._world = world
        self._clock = HybridLogicalClock()
        self.gateway = gateway
        self.number = number
        self.client_id = f"device{number}"
        self.edits = 0

    def edit(self, row_id: str, table: str = TABLE) -> Push:
        """Return the push of one edit of a row, of five columns."""
        self.edits += 1
        columns: dict[str, object] = {
            "title": f"what is to be done, {self.edits}",
            "owner": self.client_id,
            "done": self.edits % 2 == 0,
            "rank": self.edits,
            "weight": self.edits / 8,
        }
        return self.push_of(row_id, columns, table)

    def push_of(self, row_id: str, columns: dict[str, object], table: str = TABLE) -> Push:
        """Return the push of one edit of some columns of a row."""
        stamp = self._clock.now(self._world.wall_clock())
        delta = make_delta(Op.INSERT, table, row_id, columns, client_id=self.client_id, hlc=stamp)
        return Push(self.client_id, ((0, delta),))


def push_function(world: World) -> Function[FollowingPushes]:
    """Return the deployed push function."""
    settings = world.settings(PushSettings)
    return Function(world, lambda: wiring.push_service(settings))


def pull_function(
    world: World, apart_ms: int = 0
) -> Function[tuple[FollowingPulls, CheckpointService]]:
    """Return the deployed pull function; the clock of every second process may be behind."""
    settings = world.settings(PullSettings)
    numbers = itertools.count()

    def services() -> tuple[FollowingPulls, CheckpointService]:
        behind_ms = apart_ms if next(numbers) % 2 else 0
        with patch.object(wiring, "wall_clock", lambda: world.wall_clock() - behind_ms):
            return wiring.pull_services(settings)

    return Function(world, services)


def declare(world: World, function: Function[FollowingPushes], gateway: str) -> None:
    """Make the table known, as the first push to it does."""
    device = Device(world, gateway, -1)
    world.prepare(lambda: push_once(function, gateway, device.edit("first")))


def push_once(function: Function[FollowingPushes], gateway: str, push: Push) -> Stamp:
    """Push, and see that all of it was accepted; returns the stamp of the receipt."""
    receipt = function.over_http(lambda service: service.push(gateway, push))
    if receipt.outcomes:
        raise AssertionError(receipt.outcomes)
    return receipt.server_hlc


def push_until_taken(
    answers: Answers,
    function: Function[FollowingPushes],
    device: Device,
    push: Push,
    on_accepted: Callable[[Stamp], None] = lambda _: None,
) -> None:
    """Push until it is taken; the client waits a second after each refusal."""

    def request() -> None:
        on_accepted(push_once(function, device.gateway, push))

    answers.ask(device.number, request, again_after_ms=1_000)
