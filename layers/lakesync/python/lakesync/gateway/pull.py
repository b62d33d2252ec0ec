"""Pull: whole commits after a cursor, from all shards, in commit order.

No commit is ever missed, because the log is fenced before it is read (`lakesync.log.read_barrier`),
and a page ends only where a commit ends. Laws B7-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lakesync.core.messages import SNAPSHOT, PullPage
from lakesync.errors import CursorExpired, LakeSyncError, ValidationFailed
from lakesync.gateway.resync import Resyncs, is_resync
from lakesync.gateway.rule_filter import Sight
from lakesync.gateway.snapshot import Snapshots
from lakesync.log.limits import DEFAULT_LIMITS, Limits
from lakesync.log.log_cache import Tails
from lakesync.log.read_barrier import Fence, read
from lakesync.result import Err, Ok, Result

_ANOTHER_SCOPE: Final = "your rules or your claims changed in the middle; begin the snapshot again"
_SCANS_MAX: Final = 16
"""Reads of the log, of 1 MB a shard at the most, in which one request looks for what is seen."""

if TYPE_CHECKING:
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.log.read_barrier import FencedLog
    from lakesync.ports import Buffer, LogEntry, WallClock


class PullService:
    """Answers pulls for any gateway. One for each process; one request at a time."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        limits: Limits = DEFAULT_LIMITS,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._buffer = buffer
        self._limits = limits
        self._fence = Fence(buffer)
        self._snapshots = Snapshots(buffer, wall_clock, checkpoints)
        self._resyncs = Resyncs(buffer)
        self._tails = Tails(buffer)

    def pull(self, gateway: str, pull: Pull) -> Result[PullPage, LakeSyncError]:
        """Give the next page after a cursor. Safe to repeat.

        Cost: one read unit a shard for the heads, one write unit for each lagging head, and one
        round trip; for log that no request of this process has read, one read unit for each 4 KB
        and one round trip for each MB of a shard.

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
        page = self._behind(log, pull)
        return replace(page, schema_version=log.config.schema_version)

    def _behind(self, log: FencedLog, pull: Pull) -> PullPage:
        """Give the page behind a cursor, of the log or of rows as they are."""
        sight = Sight(self._buffer, log.gateway, log.config, pull)
        same = pull.scope in {"", sight.scope.text()}
        if pull.snapshot and not is_resync(pull.snapshot):
            if not same and pull.snapshot != SNAPSHOT:
                raise CursorExpired(_ANOTHER_SCOPE, field="scope")
            at = self._snapshots.position(log, pull.snapshot, sight)
            # A snapshot of nothing has a page too: it tells where the log goes on.
            if at.table or (pull.snapshot == SNAPSHOT and log.trimmed):
                page = self._snapshots.page(log, pull, at, sight)
                if pull.snapshot != SNAPSHOT:
                    return page
                return replace(page, resync=self._snapshots.resync(log))
            pull = replace(pull, since=at.since, epoch=at.epoch)
            same = True
        check_cursor(pull, log)
        if not same:
            return self._resyncs.page(log, pull, sight)
        page = self._page(log, pull, sight)
        return replace(page, epoch=log.epoch, scope=sight.scope.text())

    def _page(self, log: FencedLog, pull: Pull, sight: Sight) -> PullPage:
        """Read on until there is something to see, the log ends, or as much is read as may be."""
        since = pull.since
        deltas_max = pull.deltas_max if sight.is_whole else self._limits.page_deltas_max
        for _ in range(_SCANS_MAX):
            if since == log.top:
                break
            entries, until = self._collect(log, since, deltas_max)
            page = self._cut(entries, pull, until, sight)
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
        source = self._tails.of(log.epoch)
        slices = [read(source, log, shard, (since, log.top), deltas_max) for shard in log.heads]
        until = min(part.until for part in slices)
        found = [entry for part in slices for entry in part.entries if entry.stamp <= until]
        return sorted(found, key=lambda entry: entry.stamp), until

    def _cut(self, entries: list[LogEntry], pull: Pull, until: Stamp, sight: Sight) -> PullPage:
        """Take what is seen of whole commits until the page is full."""
        bytes_max = min(self._limits.page_bytes_max, pull.bytes_max)
        records: list[bytes] = []
        count = size = 0
        cursor: Stamp = 0
        for stamp, commit in groupby(entries, key=lambda entry: entry.stamp):
            if count >= pull.deltas_max:
                break
            seen = sight.of(list(commit))
            size += seen.size_bytes
            if count and size > bytes_max:
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
