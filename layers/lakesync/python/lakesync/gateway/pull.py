"""Pull: whole commits after a cursor, from all shards, in commit order.

No commit is ever missed, because the log is fenced before it is read (`lakesync.fence`), and a page
ends only where a commit ends. Laws B7-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lakesync.core.messages import SNAPSHOT, PullPage
from lakesync.errors import CursorExpired, LakeSyncError, ValidationFailed
from lakesync.fence import Fence, read
from lakesync.gateway.limits import DEFAULT_LIMITS, Limits
from lakesync.gateway.sight import Sight
from lakesync.gateway.snapshot import Snapshots
from lakesync.result import Err, Ok, Result

_ANOTHER_SCOPE = (
    "your rules or your claims changed since this cursor; fetch a snapshot, and keep your unsent "
    "changes"
)
_SCANS_MAX: Final = 16
"""Reads of the log, of 1 MB a shard at the most, in which one request looks for what is seen."""

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.fence import FencedLog
    from lakesync.ports import Buffer, LogEntry, WallClock


class PullService:
    """Answers pulls for any gateway. One for each process; one request at a time."""

    def __init__(
        self, buffer: Buffer, *, wall_clock: WallClock, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._buffer = buffer
        self._limits = limits
        self._fence = Fence(buffer)
        self._snapshots = Snapshots(buffer, wall_clock)

    def pull(self, gateway: str, pull: Pull) -> Result[PullPage, LakeSyncError]:
        """Give the next page after a cursor. Safe to repeat.

        Cost: one read unit a shard for the heads, one for each 4 KB of log, one write unit for
        each lagging head; one round trip, and one at the least for each shard with news.

        Returns:
            The page; or ``CURSOR_EXPIRED``, ``VALIDATION_ERROR``, ``UNAVAILABLE``.
        """
        try:
            return Ok(self._pull(gateway, pull))
        except LakeSyncError as error:
            return Err(error)

    def _pull(self, gateway: str, pull: Pull) -> PullPage:
        if not 1 <= pull.deltas_max <= self._limits.page_deltas_max:
            raise ValidationFailed(
                f"limit must be 1 to {self._limits.page_deltas_max}", field="limit"
            )
        log = self._fence.raise_heads(gateway)
        sight = Sight(self._buffer, gateway, log.config, pull)
        if pull.snapshot != SNAPSHOT and pull.scope not in {"", sight.scope}:
            raise CursorExpired(_ANOTHER_SCOPE, field="scope")
        if pull.snapshot:
            at = self._snapshots.position(log, pull.snapshot)
            # A snapshot of nothing has a page too: it tells where the log goes on.
            if at.table or (pull.snapshot == SNAPSHOT and log.trimmed):
                return self._snapshots.page(log, pull, at, sight)
            pull = replace(pull, since=at.since, epoch=at.epoch)
        check_cursor(pull, log)
        page = self._page(log, pull, sight)
        return replace(page, epoch=log.epoch, scope=sight.scope)

    def _page(self, log: FencedLog, pull: Pull, sight: Sight) -> PullPage:
        """Read on until there is something to see, the log ends, or as much is read as may be."""
        since = pull.since
        deltas_max = pull.deltas_max if sight.is_whole else self._limits.page_deltas_max
        for _ in range(_SCANS_MAX):
            if since == log.top:
                break
            entries, until = self._collect(log, since, deltas_max)
            page = self._cut(entries, pull.deltas_max, until, sight)
            since = page.cursor
            if page.count:
                return replace(page, has_more=since < log.top)
        return PullPage((), 0, since, has_more=since < log.top)

    def _collect(
        self, log: FencedLog, since: Stamp, deltas_max: int
    ) -> tuple[list[LogEntry], Stamp]:
        """Read each shard until it could fill a page; give the entries in commit order.

        Returns:
            The entries, and the stamp up to which they are all there is: where the shard that was
            read least far ended.
        """
        slices = [
            read(self._buffer, log, shard, (since, log.top), deltas_max) for shard in log.heads
        ]
        until = min(part.until for part in slices)
        found = [entry for part in slices for entry in part.entries if entry.stamp <= until]
        return sorted(found, key=lambda entry: entry.stamp), until

    def _cut(
        self, entries: list[LogEntry], deltas_max: int, until: Stamp, sight: Sight
    ) -> PullPage:
        """Take what is seen of whole commits until the page is full."""
        records: list[bytes] = []
        count = size = 0
        cursor: Stamp = 0
        for stamp, commit in groupby(entries, key=lambda entry: entry.stamp):
            if count >= deltas_max:
                break
            seen = sight.of(list(commit))
            size += seen.size_bytes
            if count and size > self._limits.page_bytes_max:
                break
            records += seen.records
            count += seen.count
            cursor = stamp
        else:
            cursor = until
        return PullPage(tuple(records), count, cursor, has_more=False)


def check_cursor(pull: Pull, log: FencedLog) -> None:
    """Refuse a cursor that the log does not reach back to, or that was given by another one.

    Raises:
        CursorExpired: it is void.
    """
    foreign = pull.since > log.top or pull.epoch not in {"", log.epoch}
    if pull.since < log.trimmed or (pull.since and foreign):
        raise CursorExpired(
            "the log no longer reaches back to this cursor; fetch a checkpoint or a snapshot, and "
            "keep your unsent changes",
            field="since",
        )
