"""Pull: whole commits after a cursor, from all lanes, in commit order.

No commit is ever missed, because the log is made final before it is read: see
`lakesync.log.read`. A page ends only where a commit ends.
Laws B7-B9: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from lakesync.core.gateway_identity import check_identity
from lakesync.core.layout import lane_shard
from lakesync.core.messages import PullPage, begins, first_of
from lakesync.errors import CursorExpired, ValidationFailed
from lakesync.gateway.bootstrap import Bootstraps
from lakesync.gateway.filtered_reads import (
    Budget,
    Reads,
    RuleFilter,
    check_cursor,
    next_commits,
    not_sent,
    resume_token_of,
    rows_of,
    scoped,
)
from lakesync.log.lanes import DEFAULT_LIMITS, Limits
from lakesync.log.log_cache import LogReader

_ANOTHER_SCOPE: Final = "your rules or your claims changed in the middle; begin the snapshot again"

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.gateway.filtered_reads import FilteredCommit, ResumeToken
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, Head, WallClock


class PullService:
    """Answers pulls for any gateway. One for each process; one request at a time."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        limits: Limits = DEFAULT_LIMITS,
        checkpoints: Checkpoints | None = None,
        monotonic_ms: Callable[[], int] | None = None,
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._limits = limits
        self._log = LogReader(buffer, wall_clock, monotonic_ms)
        self._bootstraps = Bootstraps(buffer, wall_clock, checkpoints)

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Return the next page after a cursor. Idempotent.

        Cost: as `ReadBarrier.raise_heads`, or a read unit if that was paid a moment ago. A log that
        is in no head, and that no request of this process has read, costs one read unit for each 4
        KB and one round trip for each MB of a lane.

        Raises:
            AnotherGateway: the client belongs to another one; nothing was written.
            CursorExpired: the log does not reach back to the cursor; begin with a snapshot.
            ValidationFailed: the request asks for something that does not exist.
            Unavailable: the buffer cannot be reached; try again.
        """
        deltas_max = self._limits.page_deltas_max
        if not 1 <= pull.deltas_max <= deltas_max:
            raise ValidationFailed(f"limit must be 1 to {deltas_max}", field="limit")
        pull = replace(pull, bytes_max=min(pull.bytes_max, self._limits.page_bytes_max))
        log, page = self._recent_page(gateway, pull) or self._page(gateway, pull)
        if page.has_more and not page.snapshot:
            self._log.read_on(gateway, page.cursor)
        behind_ms = 0 if page.has_more else log.behind_ms
        return replace(page, schema_version=log.config.schema_version, behind_ms=behind_ms)

    def _recent_page(self, gateway: str, pull: Pull) -> tuple[FinalLog, PullPage] | None:
        """Return the next page from heads that were just read; None if they must be read now."""
        if pull.snapshot:
            return None
        beside = partial(self._read_ahead, pull)
        recent = self._log.recent(gateway, pull.since, pull.at_least, beside)
        if recent is None:
            return None
        page = self.page_of(recent.log, pull)
        return (recent.log, page) if page.has_more or recent.may_end else None

    def _page(self, gateway: str, pull: Pull) -> tuple[FinalLog, PullPage]:
        since = 0 if pull.snapshot else pull.since
        log = self._log.current(gateway, since, pull.at_least, partial(self._read_ahead, pull))
        return log, self.page_of(log, pull)

    def final_log(self, gateway: str, since: Stamp, at_least: Stamp) -> FinalLog:
        """Return a gateway's log behind a stamp, final up to ``at_least`` or further."""
        return self._log.final(gateway, since, at_least)

    def _read_ahead(self, pull: Pull, log: FinalLog) -> list[Callable[[], None]]:
        """Return the calls that read the log for the first page, as `_log_page` will ask for it."""
        check_identity(pull.epoch, log.epoch)  # before any head is raised
        if pull.snapshot or pull.since < log.trimmed:
            return []
        rule_filter = RuleFilter(log.config, pull)
        count_max = self._deltas_max(pull, rule_filter)
        heads = _readable(log, pull.since, rule_filter)
        return self._log.read_ahead(log, heads, pull.since, count_max)

    def page_of(self, log: FinalLog, pull: Pull) -> PullPage:
        """Get a page of rows as they are while the client bootstraps, and otherwise of the log."""
        check_identity(pull.epoch, log.epoch)
        rule_filter, budget = RuleFilter(log.config, pull), Budget(self._wall_clock)
        scope = rule_filter.scope.text()
        pull = scoped(pull, log, rule_filter)
        same_scope = pull.scope in {"", scope}
        is_begun = begins(pull.snapshot)
        at = None
        if is_begun:
            at = self._bootstraps.begin(log, rule_filter, first_of(pull.snapshot))
        elif pull.snapshot:
            at = resume_token_of(pull.snapshot)
        if at is not None and at.reads is Reads.ALL_TABLES:
            if not same_scope and not is_begun:
                raise CursorExpired(_ANOTHER_SCOPE, field="scope")
            # An empty bootstrap has a page too: its cursor is where the log continues.
            if at.table or (is_begun and log.trimmed):
                page = self._bootstraps.all_tables(log, pull, rule_filter, at, budget)
                resync = self._bootstraps.resync_of_all(log, rule_filter) if is_begun else None
                return replace(page, resync=resync)
            same_scope = True
        if at is not None:
            pull = replace(pull, since=at.replay_from, epoch=at.epoch)
        check_cursor(pull, log)
        if not same_scope:
            log = self._log.whole(log.gateway)  # unflushed entries are read again
            return self._bootstraps.changed_tables(log, pull, rule_filter, at, budget)
        page = self._log_page(log, pull, rule_filter, budget, at)
        return replace(page, epoch=log.epoch, scope=scope)

    def _log_page(
        self, log: FinalLog, pull: Pull, rule_filter: RuleFilter, budget: Budget,
        at: ResumeToken | None,
    ) -> PullPage:  # fmt: skip
        """Read the log until something is visible, the log ends, or the budget is spent."""
        deltas_max = self._deltas_max(pull, rule_filter)
        log = replace(log, top=min(log.top, pull.until))
        since = pull.since
        while since < log.top and budget.allows_read():
            lanes = _readable(log, since, rule_filter)
            entries, until = self._log.entries(log, lanes, since, deltas_max)
            by_commit = groupby(entries, key=lambda entry: entry.stamp)
            commits = (not_sent(rule_filter.commit(list(each)), at) for _, each in by_commit)
            page = self._fill(log, (since, until), commits, pull, rule_filter, budget)
            if page.snapshot:
                return page
            since = page.cursor
            if page.count:
                return replace(page, has_more=since < log.top)
        return PullPage((), 0, since, has_more=since < log.top)

    def _deltas_max(self, pull: Pull, rule_filter: RuleFilter) -> int:
        """Return how many deltas of each lane could fill a page."""
        return pull.deltas_max if rule_filter.sees_everything else self._limits.page_deltas_max

    def _fill(
        self, log: FinalLog, span: tuple[Stamp, Stamp], commits: Iterator[FilteredCommit],
        pull: Pull, rule_filter: RuleFilter, budget: Budget,
    ) -> PullPage:  # fmt: skip
        """Take whole commits until the page is full, or the budget is spent.

        Rows that become visible by several commits are read together.
        """
        since, until = span
        cursor = since
        runs: list[bytes] = []
        count = size = first = 0
        while some := next_commits(commits, pull.deltas_max - count, pull.bytes_max - size):
            wanted = {key for commit in some for key in commit.rows}
            if wanted and cursor > since and not budget.allows_read():
                break
            stored = self._buffer.rows(log.gateway, wanted) if wanted else {}
            for commit in some:
                if count >= pull.deltas_max:
                    return PullPage(tuple(runs), count, cursor, has_more=True, first=first)
                rows = [rule_filter.row_now(commit, key, stored.get(key)) for key in commit.rows]
                records = commit.records.followed_by(*rows)
                size += records.size_bytes
                if size > pull.bytes_max:
                    if count:
                        return PullPage(tuple(runs), count, cursor, has_more=True, first=first)
                    if rows and pull.removes:
                        return rows_of(commit, rows, log, cursor, pull)
                runs += records.runs
                count += records.deltas
                first = first or (commit.stamp if records.deltas else 0)
                cursor = commit.stamp
        else:
            cursor = until
        return PullPage(tuple(runs), count, cursor, has_more=True, first=first)


def _readable(log: FinalLog, since: Stamp, rule_filter: RuleFilter) -> dict[str, Head]:
    """Return the heads of lanes that may contain something visible behind a stamp."""
    shards = rule_filter.shards()
    return {
        lane: head
        for lane, head in log.heads.items()
        if head.last_logged > since and lane_shard(lane) in shards
    }
