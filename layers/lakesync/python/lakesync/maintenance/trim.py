"""Trim: delete the oldest part of the log, once no reader can need it.

What may be deleted is decided by `trim_horizon`. The steps, for all lanes of a gateway:

    1. the horizon moves in the main head        from here cursors below it are answered 410
    2. the entries below it are deleted          oldest first, some at a time
    3. those in a head are removed               if all of its entries are below

A crash between any two steps leaves entries that nobody reads; the next trim deletes them. A reader
that read a head before the horizon moved, and entries after, notices the broken chain and reads
again. Law B10: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.layout import MAIN_LANE

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, Head, WallClock

_ENTRIES_MAX: Final = 250


@dataclass(frozen=True, slots=True)
class TrimReport:
    """The result of a trim."""

    horizon: Stamp = 0
    """Cursors below are void."""
    finished: bool = True
    """False if time ran out with entries left below the horizon; the next trim continues."""


def trim_horizon(watermark: Stamp, now_ms: int, keep_ms: int, covered: Stamp | None) -> Stamp:
    """Return the stamp up to which entries may be deleted.

    Args:
        watermark: everything up to here is flushed; nothing beyond may be deleted.
        now_ms: the time.
        keep_ms: the least time that entries are kept, from their commit.
        covered: everything up to here is in a checkpoint; None if the gateway has none, and clients
            that are behind read a snapshot.
    """
    old = stamp(max(now_ms - max(keep_ms, VISIBLE_MS_MAX), 0))
    return min(watermark, old) if covered is None else min(watermark, old, covered)


class Trimmer:
    """Trims the logs of gateways. Any number may run at once, also on the same gateway."""

    def __init__(self, buffer: Buffer, *, wall_clock: WallClock, keep_ms: int) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._keep_ms = keep_ms

    def trim(
        self,
        gateway: str,
        *,
        covered: Stamp | None = None,
        has_time: Callable[[], bool] = lambda: True,
    ) -> TrimReport:
        """Delete what is flushed, old and covered. Idempotent, and safe to kill.

        Args:
            gateway: whose log.
            covered: see `trim_horizon`.
            has_time: called before every few deletions; False ends the trim there.

        Raises:
            LakeSyncError: the buffer refused; what was deleted stays deleted.
        """
        self._buffer.config(gateway)  # refuses what only a later release can read
        watermark = self._buffer.flush_state(gateway).watermark
        until = trim_horizon(watermark, self._wall_clock(), self._keep_ms, covered)
        heads = self._buffer.heads(gateway)
        if MAIN_LANE not in heads:
            return TrimReport()
        horizon = heads[MAIN_LANE].trimmed
        if horizon < min(until, max(head.last_logged for head in heads.values())):
            self._raise(gateway, until)
            horizon = until
        finished = all(
            self._drop(gateway, lane, horizon, has_time)
            and self._empty(gateway, lane, head, horizon)
            for lane, head in heads.items()
        )
        return TrimReport(max(horizon, until), finished)

    def _raise(self, gateway: str, until: Stamp) -> None:
        self._buffer.raise_horizon(gateway, until)

    def _empty(self, gateway: str, lane: str, head: Head, horizon: Stamp) -> bool:
        """Remove a head's entries if none of them is above the horizon; False if it just moved."""
        if not head.recent or head.last_logged > horizon:
            return True
        return self._buffer.empty_head(gateway, lane, head)

    def _drop(self, gateway: str, lane: str, horizon: Stamp, has_time: Callable[[], bool]) -> bool:
        """Delete a lane's entries below the horizon; False if time ran out."""
        while has_time():
            if self._buffer.drop_entries(gateway, lane, horizon, _ENTRIES_MAX):
                return True
        return False
