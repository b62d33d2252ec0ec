"""Trim: the oldest part of the log goes, once nobody can need it.

What may go is decided by `trim_horizon`. How it goes, for all shards of a gateway:

    1. the horizon moves in each head            from here cursors below it are answered 410
    2. the entries below it are deleted          oldest first, some at a time

A crash between any two steps leaves entries that nobody reads; the next trim deletes them. Whoever
read a head before the horizon moved, and entries after, finds the chain broken and reads again.
Law B10: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import VISIBLE_MS_MAX, stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, Head, WallClock

_ENTRIES_MAX: Final = 250


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What a trim did."""

    horizon: Stamp = 0
    """Cursors below are void."""
    finished: bool = True
    """False if time ran out with entries left below the horizon; the next trim goes on."""


def trim_horizon(watermark: Stamp, now_ms: int, keep_ms: int, covered: Stamp | None) -> Stamp:
    """Give the stamp up to which entries may go.

    Args:
        watermark: everything up to here is flushed; nothing beyond may go.
        now_ms: the time.
        keep_ms: how long entries are kept at the least, from their commit.
        covered: everything up to here is in a checkpoint; None if the gateway has none, and clients
            that are behind read a snapshot.
    """
    old = stamp(max(now_ms - max(keep_ms, VISIBLE_MS_MAX), 0))
    return min(watermark, old) if covered is None else min(watermark, old, covered)


class Trimmer:
    """Trims the logs of gateways. Any number may run at once, on the same gateway too."""

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
        """Delete what is flushed, old and covered. Safe to repeat, and to kill.

        Args:
            gateway: whose log.
            covered: see `trim_horizon`.
            has_time: asked before each few deletions; False ends the trim there.

        Raises:
            LakeSyncError: the buffer refused; what is gone stays gone.
        """
        shards = self._buffer.config(gateway).layout.shards()
        watermark = self._buffer.flush_state(gateway).watermark
        until = trim_horizon(watermark, self._wall_clock(), self._keep_ms, covered)
        heads = self._buffer.heads(gateway, shards)
        self._raise(gateway, heads, until)
        finished = all(self._drop(gateway, shard, has_time) for shard in heads)
        before = max((head.trimmed for head in heads.values()), default=0)
        return TrimReport(max(before, until) if heads else 0, finished)

    def _raise(self, gateway: str, heads: Mapping[str, Head], until: Stamp) -> None:
        """Move the horizon of every shard that may hold an entry below it."""
        for shard, head in heads.items():
            if head.trimmed < min(until, head.last_logged):
                self._buffer.raise_horizon(gateway, shard, until)

    def _drop(self, gateway: str, shard: str, has_time: Callable[[], bool]) -> bool:
        """Delete a shard's entries below its horizon; False if time ran out."""
        while has_time():
            if self._buffer.drop_entries(gateway, shard, _ENTRIES_MAX):
                return True
        return False
