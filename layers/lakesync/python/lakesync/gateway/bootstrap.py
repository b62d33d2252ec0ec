"""Bootstrap: a client reads rows as they are, page by page, and then follows the log.

A new client, or one whose cursor is void, reads all tables, from the latest checkpoint if there is
one, else from the buffer (law B11, ``docs/spec/commit.md``). A client whose rules or token claims
changed reads the tables for which the decision changed; this is a re-sync (law V10,
``docs/spec/visibility.md``). In both cases the log follows from a stamp below which every row that
was read is complete (`lakesync.checkpoint.replay_from` explains why). The `ResumeToken` is the only
state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.replay_from import has_events, replay_from, tables_with_rows
from lakesync.core.messages import PullPage, Resync
from lakesync.core.scope import NOTHING, OTHERS, digest_of, scope_of
from lakesync.core.snapshot_order import has_any_of, place_by
from lakesync.errors import CursorExpired
from lakesync.gateway.bootstrap_tables import AllTables, ChangedTables
from lakesync.gateway.records import NO_RECORDS
from lakesync.gateway.resume_token import Reads, ResumeToken, resume_token_of
from lakesync.gateway.row_source import BufferRows, CheckpointRows, check_decides, decides
from lakesync.log.final_log import read_all

if TYPE_CHECKING:
    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.gateway.budget import Budget
    from lakesync.gateway.row_source import RowSource
    from lakesync.gateway.rule_filter import RuleFilter
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer, WallClock

_LOG_DELTAS_MAX: Final = 10_000
_BEGIN_ANEW: Final = (
    "your rules or your claims changed since this cursor; fetch a snapshot, and keep your unsent "
    "changes"
)


class Bootstraps:
    """Reads rows as they are, for any gateway.

    Args:
        buffer: the rows.
        wall_clock: the time.
        checkpoints: the checkpoints, which also contain rows; None if there are none.
    """

    def __init__(
        self, buffer: Buffer, wall_clock: WallClock, checkpoints: Checkpoints | None = None
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._checkpoints = checkpoints

    def begin(
        self, log: FinalLog, rule_filter: RuleFilter, first: tuple[str, ...] = ()
    ) -> ResumeToken:
        """Return where a bootstrap begins; a token without a table if the log alone is better.

        The log contains all tables mixed. So if tables that have rows are wanted ``first``, rows
        are read instead; and if there are events, the whole log is read again after them.
        """
        state = self._buffer.flush_state(log.gateway)
        flushed = self._buffer.flushed_tables(log.gateway)
        events = has_events(log, flushed)
        sees = rule_filter.viewer.may_see
        rows = list(filter(sees, tables_with_rows(log, flushed)))
        rows_first = bool(first) and (not events or has_any_of(first, rows))
        by_rows = log.trimmed or rows_first or not events
        checkpoint = self._latest(log, rule_filter) if by_rows else None
        if checkpoint is None and not log.trimmed and not rows_first:
            return ResumeToken(0, log.epoch)
        if checkpoint is None:
            since, of, tables = replay_from(log, state, self._wall_clock()), "", rows
        else:
            since, of = checkpoint.since, checkpoint.id
            tables = list(filter(sees, checkpoint.tables))
        table = min(tables, key=place_by(first), default="")
        # The log is the only source of events, so it is read from its beginning.
        return ResumeToken(
            log.trimmed if events else since, log.epoch, of=of, table=table, first=first
        )

    def _latest(self, log: FinalLog, rule_filter: RuleFilter) -> Manifest | None:
        """Return the checkpoint to begin with, if one can be used."""
        if self._checkpoints is None:
            return None
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        return latest if latest and decides(latest, log.config, rule_filter) else None

    def all_tables(
        self, log: FinalLog, pull: Pull, rule_filter: RuleFilter, at: ResumeToken, budget: Budget
    ) -> PullPage:
        """Return the next rows of all tables.

        Raises:
            CursorExpired: the log behind them was trimmed in the meantime, or is another's; or the
                checkpoint is no longer kept, or is older than the rules.
        """
        if at.epoch != log.epoch or at.replay_from < log.trimmed:
            raise CursorExpired("the snapshot is out of date; begin it again", field="snapshot")
        scope = rule_filter.scope
        if not at.of:
            source = BufferRows(self._buffer, log, rule_filter)
            # Any of the first tables may sort behind this one.
            names = self._tables(log, rule_filter, "" if at.first else at.table)
            tables = AllTables(names, scope, at.first)
            return _page(log, pull, source, tables, at, budget)
        if self._checkpoints is None:
            raise CursorExpired("checkpoints are no longer kept; begin again", field="snapshot")
        manifest = self._checkpoints.manifest(log.gateway, at.of)
        check_decides(manifest, log.config, rule_filter)
        chunks = CheckpointRows(self._checkpoints, manifest, rule_filter)
        tables = AllTables(filter(rule_filter.viewer.may_see, manifest.tables), scope, at.first)
        page = _page(log, pull, chunks, tables, at, budget)
        following = resume_token_of(page.snapshot)
        before = AllTables(manifest.tables, scope, at.first).before(following.table)
        progress = chunks.progress(before, following.table, following.position)
        is_whole = rule_filter.viewer.sees_everything
        return replace(page, progress=progress if is_whole else progress.in_percent)

    def resync_of_all(self, log: FinalLog, rule_filter: RuleFilter) -> Resync:
        """Return the announcement in the first page of all tables: which tables they are."""
        tables = tuple(self._tables(log, rule_filter))
        horizons = log.config.tombstone_horizons
        of_tables = {table: horizons[table] for table in tables if table in horizons}
        return Resync(tables, tombstone_horizons=of_tables)

    def _tables(self, log: FinalLog, rule_filter: RuleFilter, after: str = "") -> list[str]:
        """Return the tables whose rows are read. Others are not even named."""
        tables = tables_with_rows(log, self._buffer.flushed_tables(log.gateway, after))
        return list(filter(rule_filter.viewer.may_see, tables))

    def changed_tables(
        self, log: FinalLog, pull: Pull, rule_filter: RuleFilter, at: ResumeToken | None,
        budget: Budget,
    ) -> PullPage:  # fmt: skip
        """Return the next rows of the tables for which the client's scope differs.

        Raises:
            CursorExpired: the tables are not known, or contain events: the client begins again.
        """
        aim = digest_of(rule_filter.scope.text())
        known = {*self._buffer.flushed_tables(log.gateway), *log.config.schemas}
        tables = ChangedTables(
            scope_of(pull.scope), rule_filter.scope, known, rule_filter.viewer.omitted
        )
        if at is None or at.of != aim or not tables.is_under_way(at.table):
            self._check_readable(log, pull.since, tables)
            at = ResumeToken(pull.since, log.epoch, Reads.CHANGED_TABLES, aim)
        source = BufferRows(self._buffer, log, rule_filter)
        return _page(log, pull, source, tables, at, budget)

    def _check_readable(self, log: FinalLog, since: Stamp, tables: ChangedTables) -> None:
        """Refuse tables that cannot be read again one by one; reads the unflushed log."""
        visible = [unit for unit in tables.units() if tables.now.of(unit) != NOTHING]
        # Events are only in the log. A scope that was too long names no tables.
        readable = tables.are_listed and not any(log.config.appends(unit) for unit in visible)
        if readable and OTHERS in visible:
            unflushed = (self._buffer.flush_state(log.gateway).watermark, since)
            entries = read_all(self._buffer, log, unflushed, _LOG_DELTAS_MAX)
            logged = {table for entry in entries for table in entry.tables}
            others = (tables.known | logged) - tables.named
            # A table that was never flushed and has no schema is known only from the log.
            events = any(log.config.appends(table) for table in others)
            readable = others <= tables.known and not events
        if not readable:
            raise CursorExpired(_BEGIN_ANEW, field="scope")


def _page(
    log: FinalLog,
    pull: Pull,
    source: RowSource,
    tables: AllTables | ChangedTables,
    at: ResumeToken,
    budget: Budget,
) -> PullPage:
    """Return the first visible rows from a place on; possibly none, but with progress."""
    records, table, position = NO_RECORDS, at.table, at.position
    # Past the stamp of each row, so that a clock that follows the gateway's time is past the rows'
    # too.
    newest = log.top
    while not records.deltas and budget.allows_read():
        table = table or tables.begin_next()
        if not table:
            break
        rows = source.read(table, position, pull.deltas_max, pull.bytes_max)
        records, position, newest = rows.records, rows.position, max(newest, rows.newest)
        if not position:
            table = tables.following(table)
    return PullPage(
        records.runs,
        records.deltas,
        newest,
        has_more=True,
        epoch=log.epoch,
        snapshot=at._replace(table=table, position=position).to_text(),
        scope=tables.scope_text(),
        resync=tables.begun(log.config.tombstone_horizons),
    )
