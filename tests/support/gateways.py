"""A gateway's services around any buffer, deterministic: chance is seeded, time is given."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.lanes import DEFAULT_LIMITS
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage
    from lakesync.log.lanes import Limits
    from lakesync.ports import Buffer


class SeededChance:
    """`lakesync.log.commit.Chance` with the same jitter each time."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()

    def token(self) -> str:
        """Return a name that is never given again."""
        return uuid4().hex  # stores outlive a test, so a name must differ in each


def real_wall_clock() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def really_sleep_ms(milliseconds: float) -> None:
    time.sleep(milliseconds / 1000)


class GivenTime:
    """Wall time that only sleeping moves."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = float(now_ms)

    def wall_clock(self) -> int:
        """Return the milliseconds since 1970."""
        return int(self.now_ms)

    def sleep_ms(self, milliseconds: float) -> None:
        self.now_ms += milliseconds


def pusher(
    buffer: Buffer,
    *,
    seed: int = 0,
    time_: GivenTime | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_threshold: Callable[[str], None] = lambda _: None,
) -> PushService:
    """Make a push service as one warm process has it; with real time unless time is given."""
    return PushService(
        buffer,
        wall_clock=time_.wall_clock if time_ else real_wall_clock,
        sleep_ms=time_.sleep_ms if time_ else really_sleep_ms,
        chance=SeededChance(seed),
        limits=limits,
        on_threshold=on_threshold,
    )


def puller(
    buffer: Buffer, *, time_: GivenTime | None = None, limits: Limits = DEFAULT_LIMITS
) -> PullService:
    wall_clock = time_.wall_clock if time_ else real_wall_clock
    return PullService(buffer, wall_clock=wall_clock, limits=limits)


def administrator(buffer: Buffer, *, seed: int = 0, time_: GivenTime | None = None) -> AdminService:
    return AdminService(
        buffer,
        wall_clock=time_.wall_clock if time_ else real_wall_clock,
        sleep_ms=time_.sleep_ms if time_ else really_sleep_ms,
        chance=SeededChance(seed),
    )


def pages(
    buffer: Buffer, gateway: str, *, since: int = 0, deltas_max: int = 100
) -> Iterator[PullPage]:
    """Pull up to the newest commit, page by page."""
    service = puller(buffer)
    while True:
        pull = Pull("reader", since=since, deltas_max=deltas_max, at_least=STAMP_MAX)
        page = service.pull(gateway, pull)
        yield page
        since = page.cursor
        if not page.has_more:
            return


def deltas_of(page: PullPage) -> list[Delta]:
    return [delta for run in page.records for delta in decode_records(run)]


def pulled(buffer: Buffer, gateway: str, *, since: int = 0, deltas_max: int = 100) -> list[Delta]:
    """Return every delta after a cursor, in the order in which they come."""
    read = pages(buffer, gateway, since=since, deltas_max=deltas_max)
    return [delta for page in read for delta in deltas_of(page)]
