"""Pull: whole commits after a cursor, from all shards, in commit order.

No commit is ever missed, because the log is fenced before it is read (`lakesync.fence`), and a page
ends only where a commit ends. Laws B7-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from lakesync.core.messages import SNAPSHOT, PullPage
from lakesync.errors import CursorExpired, LakeSyncError, ValidationFailed
from lakesync.fence import Fence, read
from lakesync.gateway.limits import DEFAULT_LIMITS, Limits
from lakesync.gateway.snapshot import Snapshots
from lakesync.result import Err, Ok, Result

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
        if pull.snapshot:
            at = self._snapshots.position(log, pull.snapshot)
            # A snapshot of nothing has a page too: it tells where the log goes on.
            if at.table or (pull.snapshot == SNAPSHOT and log.trimmed):
                return self._snapshots.page(log, pull, at)
            pull = replace(pull, since=at.since, epoch=at.epoch)
        top, epoch = log.top, log.epoch
        check_cursor(pull, log)
        if pull.since == top:
            return PullPage((), 0, top, has_more=False, epoch=epoch)
        entries, until = self._collect(log, pull)
        page, cursor = self._cut(entries, pull.deltas_max, until)
        return PullPage(
            tuple(entry.records for entry in page),
            sum(entry.count for entry in page),
            cursor,
            has_more=cursor < top,
            epoch=epoch,
        )

    def _collect(self, log: FencedLog, pull: Pull) -> tuple[list[LogEntry], Stamp]:
        """Read each shard until it could fill a page; give the entries in commit order.

        Returns:
            The entries, and the stamp up to which they are all there is: where the shard that was
            read least far ended.
        """
        slices = [
            read(self._buffer, log, shard, (pull.since, log.top), pull.deltas_max)
            for shard in log.heads
        ]
        until = min(part.until for part in slices)
        found = [entry for part in slices for entry in part.entries if entry.stamp <= until]
        return sorted(found, key=lambda entry: entry.stamp), until

    def _cut(
        self, entries: list[LogEntry], deltas_max: int, until: Stamp
    ) -> tuple[list[LogEntry], Stamp]:
        """Take whole commits until the page is full; gives them and the cursor behind them."""
        count = size = taken = 0
        for _, commit in groupby(entries, key=lambda entry: entry.stamp):
            held = list(commit)
            size += sum(len(entry.records) for entry in held)
            if taken and (count >= deltas_max or size > self._limits.page_bytes_max):
                return entries[:taken], entries[taken - 1].stamp
            count += sum(entry.count for entry in held)
            taken += len(held)
        return entries, until


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
