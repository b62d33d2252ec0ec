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
from lakesync.gateway.budget import Budget
from lakesync.gateway.resync import Resyncs, is_resync
from lakesync.gateway.rule_filter import RuleFilter
from lakesync.gateway.snapshot import Snapshots
from lakesync.log.limits import DEFAULT_LIMITS, Limits
from lakesync.log.log_cache import Tails
from lakesync.log.read_barrier import Fence, read
from lakesync.result import Err, Ok, Result

_ANOTHER_SCOPE: Final = "your rules or your claims changed in the middle; begin the snapshot again"
ROWS_READ_AT_ONCE: Final = 100
"""Rows that become visible, of several commits, after which they are read: as many as one request
to DynamoDB takes. A commit more may come on top."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.gateway.records import FilteredCommit
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
        self._wall_clock = wall_clock
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
        rule_filter = RuleFilter(log.config, pull)
        same = pull.scope in {"", rule_filter.scope.text()}
        if pull.snapshot and not is_resync(pull.snapshot):
            if not same and pull.snapshot != SNAPSHOT:
                raise CursorExpired(_ANOTHER_SCOPE, field="scope")
            at = self._snapshots.position(log, pull.snapshot, rule_filter)
            # A snapshot of nothing has a page too: it tells where the log goes on.
            if at.table or (pull.snapshot == SNAPSHOT and log.trimmed):
                page = self._snapshots.page(log, pull, at, rule_filter)
                if pull.snapshot != SNAPSHOT:
                    return page
                return replace(page, resync=self._snapshots.resync(log))
            pull = replace(pull, since=at.since, epoch=at.epoch)
            same = True
        check_cursor(pull, log)
        if not same:
            return self._resyncs.page(log, pull, rule_filter)
        page = self._page(log, pull, rule_filter)
        return replace(page, epoch=log.epoch, scope=rule_filter.scope.text())

    def _page(self, log: FencedLog, pull: Pull, rule_filter: RuleFilter) -> PullPage:
        """Read the log on until something is visible, it ends, or as much is read as may be."""
        budget = Budget(self._wall_clock)
        deltas_max = self._limits.page_deltas_max
        if rule_filter.sees_everything:
            deltas_max = pull.deltas_max
        since = pull.since
        while since < log.top and budget.allows_read():
            entries, until = self._collect(log, since, deltas_max)
            page = self._filtered(log, (since, until), entries, pull, rule_filter, budget)
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
        entries = [entry for part in slices for entry in part.entries if entry.stamp <= until]
        return sorted(entries, key=lambda entry: entry.stamp), until

    def _filtered(
        self, log: FencedLog, span: tuple[Stamp, Stamp], entries: list[LogEntry], pull: Pull,
        rule_filter: RuleFilter, budget: Budget,
    ) -> PullPage:  # fmt: skip
        """Take what is visible of whole commits until the page is full, or the budget is spent.

        The rows that become visible by many commits are read at once.
        """
        bytes_max = min(self._limits.page_bytes_max, pull.bytes_max)
        runs: list[bytes] = []
        count = size = 0
        since, until = span
        cursor = since
        groups = groupby(entries, key=lambda entry: entry.stamp)
        commits = (rule_filter.commit(list(group)) for _, group in groups)
        while batch := _batch(commits, pull.deltas_max - count, bytes_max - size):
            if count >= pull.deltas_max:
                break
            wanted = {key for commit in batch for key in commit.rows}
            if wanted and cursor > since and not budget.allows_read():
                break
            stored = self._buffer.rows(log.gateway, wanted) if wanted else {}
            for commit in batch:
                records = commit.records
                for key in commit.rows:
                    records = records.followed_by(rule_filter.row_now(commit, key, stored.get(key)))
                size += records.size_bytes
                if count >= pull.deltas_max or (count and size > bytes_max):
                    return PullPage(tuple(runs), count, cursor, has_more=True)
                runs += records.runs
                count += records.deltas
                cursor = commit.stamp
        else:
            cursor = until
        return PullPage(tuple(runs), count, cursor, has_more=True)


def _batch(
    commits: Iterator[FilteredCommit], deltas_max: int, bytes_max: int
) -> list[FilteredCommit]:
    """Take commits that may fill a page, or whose rows are read at once; at least one, if any."""
    batch: list[FilteredCommit] = []
    rows = deltas = size = 0
    for commit in commits:
        batch.append(commit)
        rows += len(commit.rows)
        deltas += commit.records.deltas + len(commit.rows)
        size += commit.records.size_bytes
        if rows >= ROWS_READ_AT_ONCE or deltas >= deltas_max or size >= bytes_max:
            break
    return batch


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
