"""Bootstrap: a client reads rows as they are, page by page, and then follows the log.

A new client, or one whose cursor is void, reads all tables, from the latest checkpoint if there is
one, else from the buffer (law B11, ``docs/spec/commit.md``). A client whose rules or token claims
changed reads the tables for which the decision changed; this is a re-sync (law V10,
``docs/spec/visibility.md``). In both cases the log follows from a stamp below which every row that
was read is complete (`lakesync.checkpoint` explains why). The `ResumeToken` is the only
state.

A `RowSource` reads one table's current rows in pages, from the buffer or from a checkpoint. The
result is the rows that one client may see, as deltas that merge to them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.checkpoint import has_events, replay_from, tables_with_rows
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.messages import Progress, PullPage, Resync, has_any_of, place_by
from lakesync.core.visibility import NOTHING, OTHERS, UNKNOWN, Scope, digest_of, scope_of
from lakesync.errors import Contention, CursorExpired, ValidationFailed
from lakesync.gateway.filtered_reads import NO_RECORDS, Reads, Records, ResumeToken, resume_token_of
from lakesync.log.read import read_all
from lakesync.wire.records import decode_records, decode_row_state, encode_records, row_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lakesync.checkpoint.store import Checkpoints, Manifest
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import Pull
    from lakesync.gateway.filtered_reads import Budget, RuleFilter
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, RowSlice, WallClock

# --- pages ----------------------------------------------------------------------------------------


_LOG_DELTAS_MAX: Final = 10_000
_BEGIN_ANEW: Final = (
    "your rules or your claims changed since this cursor; fetch a snapshot, and keep your unsent "
    "changes"
)


class Bootstraps:
    """Reads rows as they are, for any gateway.

    Args:
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


# --- the order of tables --------------------------------------------------------------------------


class AllTables:
    """The tables of a snapshot: those wanted first, then the others by name."""

    def __init__(self, names: Iterable[str], scope: Scope, first: tuple[str, ...] = ()) -> None:
        self._place_of = place_by(first)
        self._names = sorted(names, key=self._place_of)
        self._scope = scope

    def begin_next(self) -> str:
        """Return none: the first table is the one where it began."""
        return ""

    def following(self, table: str) -> str:
        """Return the table behind the given one; empty behind the last."""
        at = self._place_of(table)
        return next((name for name in self._names if self._place_of(name) > at), "")

    def before(self, table: str) -> list[str]:
        """Return the tables that are read before the given one; all of them if it is empty."""
        at = self._names.index(table) if table in self._names else len(self._names)
        return self._names[:at]

    def scope_text(self) -> str:
        return self._scope.text()

    def begun(self, horizons: Mapping[str, Stamp]) -> Resync | None:
        """Return none: all of them begin with the first page."""
        del horizons
        return None


class ChangedTables:
    """The tables for which a client's scope differs from the scope in force.

    The client hands back the scope of what it holds. In the scope of each page, finished tables
    have their new digest, and a table in progress has a digest that equals none. So the scope
    contains the whole progress, and a second change in the meantime leads only to the tables that
    it concerns.

    A unit is a table that either scope names, or all others together.

    Args:
        omitted: gives the columns of a unit that the scope in force leaves out.
    """

    def __init__(
        self,
        before: Scope,
        now: Scope,
        known: set[str],
        omitted: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._progress = before
        self._omitted = omitted
        self.now = now
        self.known = known
        self.named = {*before.tables, *now.tables}
        self._begun: list[str] = []

    @property
    def are_listed(self) -> bool:
        """Return whether both scopes were short enough to list digests by table."""
        return self._progress.is_listed and self.now.is_listed

    def units(self) -> list[str]:
        return self.now.changed(self._progress)

    def is_under_way(self, table: str) -> bool:
        return bool(table) and self._progress.of(self._unit(table)) == UNKNOWN

    def begin_next(self) -> str:
        """Begin the next unit that has a table to read; give its table, empty if all are done."""
        for unit in self.units():
            self._begun.append(unit)
            # Tables named by either scope get entries of their own, before the digest of `OTHERS`
            # changes.
            named = {table: self._progress.of(table) for table in self.named}
            self._progress = Scope(self._progress.others, named).marked(unit, UNKNOWN)
            if self.now.of(unit) != NOTHING:
                table = unit or self._other_behind("")
                if table:
                    return table
            self._finish(unit)
        return ""

    def following(self, table: str) -> str:
        """Return the table behind the given one, in its unit; empty behind the last."""
        unit = self._unit(table)
        behind = self._other_behind(table) if unit == OTHERS else ""
        if not behind:
            self._finish(unit)
        return behind

    def scope_text(self) -> str:
        return (self._progress if self.units() else self.now).text()

    def begun(self, horizons: Mapping[str, Stamp]) -> Resync | None:
        """Return the announcement of the units that began with this page; None if none did."""
        if not self._begun:
            return None
        tables = tuple(unit for unit in self._begun if unit != OTHERS)
        named = tuple(sorted(self.named)) if OTHERS in self._begun else None
        # A client may hold its own writes to a row whose deletion it could not see. Tables that it
        # does not see are not named: nothing of them is sent.
        omitted = {unit: tuple(sorted(self._omitted(unit))) for unit in self._begun}
        resync = Resync(
            tables, named, omitted={unit: names for unit, names in omitted.items() if names}
        )
        of_tables = {
            table: horizon
            for table, horizon in horizons.items()
            if resync.concerns(table) and self.now.of(table) != NOTHING
        }
        return replace(resync, tombstone_horizons=of_tables)

    def _unit(self, table: str) -> str:
        return table if table in self.named else OTHERS

    def _other_behind(self, table: str) -> str:
        others = sorted(self.known - self.named)
        return next((name for name in others if name > table), "")

    def _finish(self, unit: str) -> None:
        self._progress = self._progress.marked(unit, self.now.of(unit))


# --- the rows of one table ------------------------------------------------------------------------


_IN_CHECKPOINT: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


class Rows(NamedTuple):
    records: Records
    position: str
    """The position of the next rows; empty at the end."""
    newest: Stamp = 0
    """The latest commit that wrote one of the rows; 0 if unknown."""


class RowSource(Protocol):
    """A source of rows."""

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return whole rows of a table from a position (empty: from the first); at least one.

        Raises:
            ValidationFailed: there is no such position.
        """
        ...


class BufferRows:
    """Reads rows as they are in the buffer, for one request.

    A commit of many items becomes visible item by item, so a row may be read as it was before a
    commit. The client then gets the change, or the row's removal, from the log. But log entries
    that are older than the rules may lack the columns that decide this. So a row that such an entry
    wrote is returned only once the written version is visible.
    """

    def __init__(self, buffer: Buffer, log: FinalLog, rule_filter: RuleFilter) -> None:
        self._buffer = buffer
        self._log = log
        self._rule_filter = rule_filter

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return rows; see `RowSource.read`.

        Cost: for a minute after rules first use a column, the log of the minute before that is read
        too.

        Raises:
            Contention: a row is becoming visible; try again in a moment.
        """
        if position[:1] not in {"", *"0123456789abcdef"}:
            raise ValidationFailed("the buffer has no such position", field="snapshot")
        rows_max = deltas_max
        while True:
            piece = self._buffer.scan_rows(self._log.gateway, table, position, rows_max)
            self._check_written(table, piece)
            runs: list[bytes] = []
            deltas = size = 0
            for number, (row_id, stored) in enumerate(piece.rows):
                row = self._rule_filter.row(table, row_id, decode_row_state(stored.state))
                run = encode_records(row) if row else b""
                size += len(run)
                if deltas and size > bytes_max:
                    rows_max = number  # read fewer: only the end of a slice is a position
                    break
                deltas += len(row)
                runs.append(run)
            else:
                newest = max((row.commit for _, row in piece.rows), default=0)
                records = Records((b"".join(runs),), deltas) if deltas else NO_RECORDS
                return Rows(records, piece.place, newest)

    def _check_written(self, table: str, piece: RowSlice) -> None:
        log, undecided_until = self._log, self._log.config.logged.since
        every_row = self._rule_filter.viewer.sees_rows_of(table)
        if every_row or log.top > undecided_until + stamp(VISIBLE_MS_MAX):
            return
        written: dict[str, Stamp] = {}
        after = max(undecided_until - stamp(VISIBLE_MS_MAX), log.trimmed)
        for entry in read_all(self._buffer, log, (after, undecided_until), _LOG_DELTAS_MAX):
            for delta in decode_records(entry.records) if table in entry.tables else ():
                if delta.table == table:
                    written[delta.row_id] = max(entry.stamp, written.get(delta.row_id, 0))
        if any(row.commit < written.get(row_id, 0) for row_id, row in piece.rows):
            raise Contention("a row is becoming visible; try again in a moment")


class CheckpointRows:
    """Reads rows from a checkpoint, for one request. A fully visible part is not decoded.

    A position is the number of a part in its table, and how many of the part's deltas were read.
    """

    def __init__(
        self, checkpoints: Checkpoints, manifest: Manifest, rule_filter: RuleFilter
    ) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._rule_filter = rule_filter
        self.bytes_read = 0

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return rows; see `RowSource.read`.

        Raises:
            CursorExpired: the checkpoint is no longer kept.
        """
        match = _IN_CHECKPOINT.fullmatch(position or "0:0")
        chunks = self._manifest.tables.get(table)
        number, read = (int(match[1]), int(match[2])) if match else (0, 0)
        place = chunks.place(number) if match and chunks else None
        if chunks is None or place is None or read >= place.part.deltas:
            raise ValidationFailed("the checkpoint has no such part", field="snapshot")
        run = self._checkpoints.part(self._manifest.gateway, self._manifest.id, place)
        self.bytes_read += len(run)
        following = f"{number + 1}:0" if number + 1 < chunks.parts else ""
        fits = not read and place.part.deltas <= deltas_max and len(run) <= bytes_max
        if fits and self._rule_filter.sees_everything:
            return Rows(Records((run,), place.part.deltas), following)
        runs: list[bytes] = []
        deltas = size = at = 0
        columns = self._rule_filter.columns(table)
        for row in row_runs(run, columns, delete_wins=self._rule_filter.delete_wins(table)):
            if at >= read:
                visible = self._rule_filter.row_run(table, row)
                size += visible.size_bytes
                if deltas and (deltas >= deltas_max or size > bytes_max):
                    return Rows(Records(tuple(runs), deltas), f"{number}:{at}")
                runs += visible.runs
                deltas += visible.deltas
            at += row.deltas
        return Rows(Records(tuple(runs), deltas), following)

    def progress(self, before: Iterable[str], table: str, position: str) -> Progress:
        """Return the progress: all rows of some tables, and those of this one up to a position.

        Cost: a loop over the parts in the manifest, which is in memory.
        """
        tables = self._manifest.tables
        match = _IN_CHECKPOINT.fullmatch(position)
        read = sum(tables[name].rows for name in before)
        if match and table in tables:
            parts = chain.from_iterable(chunk.parts for chunk in tables[table].chunks)
            read += sum(part.rows for part in islice(parts, int(match[1])))
        return Progress(read, sum(chunks.rows for chunks in tables.values()))


def decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> bool:
    """Return whether the log after a checkpoint shows for each row when it becomes hidden.

    Log entries contain only the columns that rules used at that time. So a client that does not see
    every row could keep rows that were hidden between the checkpoint and the current rules.
    """
    return rule_filter.viewer.sees_every_row or manifest.since >= config.logged.since


def check_decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> None:
    """Refuse a checkpoint that is older than the rules in force; see `decides`.

    Raises:
        CursorExpired: it is older.
    """
    if not decides(manifest, config, rule_filter):
        raise CursorExpired(
            "your rules look at columns that the checkpoint lacks; begin again", field="scope"
        )
