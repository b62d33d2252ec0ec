"""The push quota of each gateway, so that no tenant starves another.

Rules of this module
    1. Each process counts for itself, and reports to one item of the gateway after it has counted
       its share. The share is half of what was left of the window's quota, times its own part of
       all pushes, and at most a `SHARES`-th of the quota. The answer contains what all processes
       have reported.
    2. Usage that is not reported yet stays counted, in this window or a later one.
    3. No push is refused from one process's own count: the process reports first.
    4. If a quota was nearly used up in the window before, a process reports its first push, and its
       part is assumed to be unchanged. So many processes learn of each other.
    5. A push is admitted or refused before it is read, by earlier usage. So a push that exceeds a
       window's quota is admitted when its turn comes.
    6. If reports fail, pushes are admitted.

Laws Q1-Q4: ``docs/spec/quota.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.errors import RateLimited, Unavailable
from lakesync.ports import Quota, Usage

if TYPE_CHECKING:
    from lakesync.ports import QuotaStore, WallClock

WINDOW_MS: Final = 5_000
"""The window in which a quota may be used unevenly: retries are repeated within such a time."""
SHARES: Final = 32
"""The largest part of a window's quota that a process counts between two reports."""
BUSY_SHARE: Final = 0.75
"""The part of a window's quota beyond which the next window is counted more closely."""
PAUSE_MS: Final = 1_000
"""How long after a failed report none is tried."""
QUOTAS_REMEMBERED_MAX: Final = 1_000
"""Gateways whose usage one process remembers: a few hundred bytes each."""
NOTHING: Final = Usage()


@dataclass(slots=True)
class _Counted:
    """What one process knows of one gateway's usage."""

    quota: Quota
    window: int = 0
    until_ms: int = 0
    """When this window ends here; by another process's clock it may have begun earlier."""
    known: Usage = NOTHING
    """Usage in this window that all processes have reported, this one included."""
    unreported: Usage = NOTHING
    """Usage that was counted here and is not reported yet."""
    own: Usage = NOTHING
    """The part of the known usage that this process reported."""
    part: float = 1
    """This process's part of all pushes in the window before, if the quota was nearly used up."""
    reports_first: bool = False
    """The quota was nearly used up in the window before, and nothing of this window is reported
    yet."""
    paused_until_ms: int = 0


class Quotas:
    """Admits pushes while their gateway has some of its quota left. One for each process.

    Cost in write units: none below a `SHARES`-th of the quota in each process, about twelve in a
    window for half of it, and five for each process if all of it is used up.
    """

    def __init__(self, store: QuotaStore, default: Quota, *, wall_clock: WallClock) -> None:
        self._store = store
        self._default = default
        self._wall_clock = wall_clock
        self._counted: dict[str, _Counted] = {}

    def check(self, gateway: str) -> None:
        """Refuse a push if its gateway has used up its quota for this window.

        Raises:
            RateLimited: it has; try again when the next window begins.
        """
        counted, now_ms = self._of(gateway)
        if counted.unreported != NOTHING and _used_up(counted):
            self._report(gateway, counted, now_ms)
        if _is_over(counted.known, counted.quota):
            raise RateLimited(
                "this gateway pushes more than its quota; push again later, or ask its operator "
                "for a larger one",
                retry_after_s=math.ceil((counted.until_ms - now_ms) / 1000),
            )

    def use(self, gateway: str, usage: Usage) -> None:
        """Count the usage of a push."""
        counted, now_ms = self._of(gateway)
        counted.unreported = _sum(counted.unreported, usage)
        if counted.reports_first or _is_share(counted):
            self._report(gateway, counted, now_ms)

    def _of(self, gateway: str) -> tuple[_Counted, int]:
        now_ms = self._wall_clock()
        # The most recently used is dropped last.
        counted = self._counted.pop(gateway, None) or _Counted(self._default)
        self._counted[gateway] = counted
        if len(self._counted) > QUOTAS_REMEMBERED_MAX:
            del self._counted[next(iter(self._counted))]
        if not 0 < counted.until_ms - now_ms <= WINDOW_MS:  # it ended, or the clock stepped back
            counted.reports_first = _is_over(counted.known, counted.quota, BUSY_SHARE)
            counted.part = _own_part(counted) if counted.reports_first else 1
            counted.window, counted.known, counted.own = now_ms // WINDOW_MS, NOTHING, NOTHING
            counted.until_ms = (counted.window + 1) * WINDOW_MS
        return counted, now_ms

    def _report(self, gateway: str, counted: _Counted, now_ms: int) -> None:
        if now_ms < counted.paused_until_ms:
            return
        try:
            reported = self._store.report(gateway, counted.window, counted.unreported)
        except Unavailable:
            counted.paused_until_ms = now_ms + PAUSE_MS
            return
        if reported.window != counted.window:
            counted.window, counted.until_ms = reported.window, now_ms + WINDOW_MS
            counted.own = NOTHING
        counted.own = _sum(counted.own, counted.unreported)
        counted.known, counted.unreported, counted.reports_first = reported.usage, NOTHING, False
        own = reported.quota
        counted.quota = Quota(
            *(default if value is None else value
              for value, default in zip(own, self._default, strict=True))
        )  # fmt: skip


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(*(a + b for a, b in zip(one, other, strict=True)))


def _used_up(counted: _Counted) -> bool:
    return _is_over(_sum(counted.known, counted.unreported), counted.quota)


def _is_over(usage: Usage, quota: Quota, part: float = 1) -> bool:
    return any(
        limit and used >= part * _in_window(limit) for used, limit in zip(usage, quota, strict=True)
    )


def _is_share(counted: _Counted) -> bool:
    part = min(counted.part, _own_part(counted))
    return any(
        limit
        and used
        and used >= min(_in_window(limit) / SHARES, part * (_in_window(limit) - known) / 2)
        for used, known, limit in zip(counted.unreported, counted.known, counted.quota, strict=True)
    )


def _own_part(counted: _Counted) -> float:
    return counted.own.pushes / counted.known.pushes if counted.known.pushes else 1


def _in_window(limit: int) -> int:
    return limit * WINDOW_MS // 1000
