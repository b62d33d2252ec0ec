"""Lambda as a model: warm processes that serve one request at a time, cold starts, a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from benchmarks.scale import latency
from lakesync.errors import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale.world import World

T = TypeVar("T")
R = TypeVar("R")
CONCURRENCY_MAX: Final = 1_000
"""Processes at once in a new account, of all functions together; more on request."""


class Function(Generic[T]):
    """One function. Its processes are the real objects, made anew in each cold start.

    Args:
        world: the time it lives in.
        make: makes what one process serves requests with.
        concurrency_max: how many processes there may be.
    """

    def __init__(
        self, world: World, make: Callable[[], T], concurrency_max: int = CONCURRENCY_MAX
    ) -> None:
        self._world = world
        self._make = make
        self._concurrency_max = concurrency_max
        self._random = world.stream("lambda")
        self._idle: list[T] = []
        self.processes = 0
        """How many there are."""
        self.busy_ms = 0.0
        """How long all processes together have served requests."""
        self.refused = 0
        """Requests that met all processes busy."""

    def call(self, act: Callable[[T], R]) -> R:
        """Serve a request in the process that was used last, of those that are free.

        Raises:
            RateLimited: all processes are busy, and no more are allowed.
        """
        if self._idle:
            process = self._idle.pop()
        elif self.processes < self._concurrency_max:
            self.processes += 1
            self._world.sleep_ms(latency.COLD_START.draw_ms(self._random))
            process = self._make()
        else:
            self.refused += 1
            raise RateLimited("Rate Exceeded")
        begun_ms = self._world.now_ms()
        self._world.sleep_ms(latency.INVOKE_CPU_MS)
        try:
            return act(process)
        finally:
            self.busy_ms += self._world.now_ms() - begun_ms
            self._idle.append(process)

    def over_http(self, act: Callable[[T], R]) -> R:
        """Serve a request that comes through API Gateway."""
        way_ms = latency.API.draw_ms(self._random) / 2
        self._world.sleep_ms(way_ms)
        try:
            return self.call(act)
        finally:
            self._world.sleep_ms(way_ms)
