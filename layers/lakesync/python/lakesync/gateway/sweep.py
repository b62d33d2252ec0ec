"""The sweep of connections: closes those that may no longer be served, and removes dead ones.

Laws T6, T9: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from lakesync.gateway.connected import classified

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.access import Access
    from lakesync.gateway.delivery import Delivery
    from lakesync.ports import Connection, Connections, WallClock


class ConnectionSweep:
    """Examines the connections of all gateways. One for each process; one call at a time.

    Args:
        connections: the open connections.
        delivery: closes and removes them.
        access: knows who is revoked.
        wall_clock: the clock.
    """

    def __init__(
        self, connections: Connections, delivery: Delivery, access: Access, wall_clock: WallClock
    ) -> None:
        self._connections = connections
        self._delivery = delivery
        self._access = access
        self._wall_clock = wall_clock
        self._place = ""
        """Where the sweep continues, as the last one had no time for the rest."""

    def sweep(self, has_time: Callable[[], bool]) -> int:
        """Close or remove connections that may no longer be served; returns how many.

        A sweep that runs out of time continues from there the next time.
        """
        over = 0
        gathered: list[Connection] = []
        while True:
            some, self._place = self._connections.scan(self._place)
            gathered += some
            is_last = not self._place or not has_time()
            # A gateway's connections are consecutive, and may continue in the next part.
            last = "" if is_last else gathered[-1].gateway if gathered else ""
            for gateway, of_gateway in groupby(gathered, key=lambda each: each.gateway):
                if gateway != last:
                    over += self._sweep_gateway(list(of_gateway), has_time)
            if is_last:
                return over
            gathered = [each for each in gathered if each.gateway == last]

    def _sweep_gateway(self, connections: list[Connection], has_time: Callable[[], bool]) -> int:
        now_s = self._wall_clock() / 1000
        _, refused, dead = classified(connections, self._access, now_s)
        forgotten = self._delivery.forget(dead, has_time)
        return forgotten + self._delivery.refuse(refused, has_time)
