"""What one client may read of a gateway, filtered by its rules, in as many requests as it takes.

Every result of a pull passes through the filter. Columns left out are removed in one place,
`RuleFilter._shown`; logged bytes are decoded only where needed.

A delta is decided by its row as of that commit, of which the log keeps the columns that rules read;
if rules read others too, by the row as it is now, and a hidden row is not even named. A row that
becomes visible is sent whole, as it is now, and only if it is visible now: otherwise its removal
follows in the log.
Laws V4, V7 and V12: ``docs/spec/visibility.md``.

A token says where any paged read of rows continues. Clients hand it back unchanged. They read only
one field of it, the stamp behind which the log continues (`lakesync.core.messages.log_behind`). A
commit that makes more rows visible than one answer carries is such a read: its rows are sent first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.delta import GATEWAY_CLIENT, Delta, Op, known_delta, removal
from lakesync.core.merge import deltas_of
from lakesync.core.messages import ALL_TABLES, PullPage, begins, first_of
from lakesync.core.visibility import (
    NOTHING,
    Transition,
    Viewer,
    rule_columns,
    rule_values,
    transition_of,
)
from lakesync.errors import Contention, CursorExpired, ValidationFailed
from lakesync.wire.log_entries import decode_rule_rows, delta_slices, values_of
from lakesync.wire.records import decode_records, decode_row_state, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull
    from lakesync.log.read import FinalLog
    from lakesync.ports import LogEntry, RowKey, StoredRow, WallClock
    from lakesync.wire.log_entries import RuleRows
    from lakesync.wire.records import RowRun

# --- the encoded deltas of a page -----------------------------------------------------------------


ROWS_READ_AT_ONCE: Final = 100
"""Rows of several commits that become visible are read together once there are so many: one request
to DynamoDB takes as many. One commit more may be added."""


class Records(NamedTuple):
    runs: tuple[bytes, ...] = ()
    deltas: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.runs))

    def followed_by(self, *others: Records) -> Records:
        runs = [run for each in (self, *others) for run in each.runs]
        return Records(tuple(runs), sum(each.deltas for each in (self, *others)))


NO_RECORDS: Final = Records()


class FilteredCommit(NamedTuple):
    """The visible part of one commit."""

    stamp: Stamp
    records: Records
    rows: Sequence[RowKey]
    """Rows to read, which are sent as they are now if they are visible."""
    rows_sent: int = 0
    """How many of the commit's rows, from the first on, the client was already sent."""


@dataclass(slots=True)
class RowsToRead:
    """Collects the rows of `FilteredCommit.rows`."""

    wanted: dict[RowKey, None] = field(default_factory=dict)
    removed: set[RowKey] = field(default_factory=set)
    """Rows that the commit also removes: they are sent after their removals, never before."""

    def want(self, key: RowKey) -> None:
        self.wanted[key] = None

    def removed_last(self) -> list[RowKey]:
        return sorted(self.wanted, key=self.removed.__contains__)


def next_commits(
    commits: Iterator[FilteredCommit], deltas_max: int, bytes_max: int
) -> list[FilteredCommit]:
    """Take commits that may fill a page, or whose rows are read together; at least one, if any."""
    taken: list[FilteredCommit] = []
    rows = deltas = size = 0
    for commit in commits:
        taken.append(commit)
        rows += len(commit.rows)
        deltas += commit.records.deltas + len(commit.rows)
        size += commit.records.size_bytes
        if rows >= ROWS_READ_AT_ONCE or deltas >= deltas_max or size >= bytes_max:
            break
    return taken


# --- the filter -----------------------------------------------------------------------------------


class RuleFilter:
    """Applies sync rules to log entries and rows, for one client and one request. Reads nothing."""

    def __init__(self, config: GatewayConfig, pull: Pull) -> None:
        self._config = config
        self._removes = pull.removes
        self._rules = config.rules if pull.rules is None else pull.rules
        self.viewer = Viewer(self._rules, pull.claims, config.logged.generation)
        self._columns: dict[str, frozenset[str]] = {}
        self._deciders: dict[tuple[str, tuple[str, ...]], Callable[[bytes], bool] | None] = {}
        self.scope = self.viewer.scope()
        """The scope of the rules and token claims that decide what is visible."""

    @property
    def sees_everything(self) -> bool:
        """Return whether the client sees every row of every table, and every column."""
        return self.viewer.sees_everything

    def shards(self) -> frozenset[str]:
        """Return the shards whose log may contain anything that the client sees."""
        return self._config.layout.readable(self.viewer.may_see)

    def columns(self, table: str) -> frozenset[str]:
        columns = self._columns.get(table)
        if columns is None:
            columns = self._columns[table] = self._rules.columns(table)
        return columns

    def delete_wins(self, table: str) -> bool:
        """Return whether no update restores a deleted row of the table."""
        return self._config.delete_wins(table)

    # --- rows -------------------------------------------------------------------------------------

    def row(self, table: str, row_id: str, state: RowState) -> list[Delta]:
        """Return a row as the client sees it: as deltas that merge to it, none if it is hidden."""
        deltas = deltas_of(table, row_id, state) if self.sees(table, state) else []
        return self.shown(deltas) if self.viewer.omitted(table) else deltas

    def sees(self, table: str, state: RowState) -> bool:
        """Return whether the client may see a row."""
        return self.viewer.sees_rows_of(table) or self.viewer.sees(
            table, rule_values(self._config.as_read(table, state), self.columns(table))
        )

    def row_run(self, table: str, row: RowRun) -> Records:
        """Return a row as the client sees it, as `row` does, from the run of its deltas."""
        if not self.viewer.sees_rows_of(table):
            values = row.values and rule_columns(row.values.items(), self.columns(table))
            if row.values is None or not self.viewer.sees(table, values):
                return NO_RECORDS
        return self._shown({table}, Records((row.run,), row.deltas))

    def shown(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Return what is sent of deltas whose rows are visible, without the columns left out."""
        each = map(self.viewer.shown, deltas)
        return [delta for delta in each if delta is not None]

    def _shown(self, tables: Iterable[str], records: Records) -> Records:
        """Return the same for encoded deltas, which are only of these tables."""
        if not any(map(self.viewer.omitted, tables)) or not records.deltas:
            return records
        deltas = self.shown(delta for run in records.runs for delta in decode_records(run))
        return Records((encode_records(deltas),), len(deltas)) if deltas else NO_RECORDS

    def row_now(self, commit: FilteredCommit, key: RowKey, stored: StoredRow | None) -> Records:
        """Return one of a commit's rows as it is now; nothing if it is hidden.

        Raises:
            Contention: the row is becoming visible; try again in a moment.
        """
        if stored is None or stored.commit < commit.stamp:
            raise Contention("a row is becoming visible; try again in a moment")
        deltas = self.row(*key, decode_row_state(stored.state))
        return Records((encode_records(deltas),), len(deltas)) if deltas else NO_RECORDS

    # --- the log ----------------------------------------------------------------------------------

    def commit(self, entries: list[LogEntry]) -> FilteredCommit:
        """Return the visible part of a commit, and the rows that have to be read as well."""
        stamp = entries[0].stamp
        if self.sees_everything:
            runs = tuple(entry.records for entry in entries)
            return FilteredCommit(stamp, Records(runs, sum(entry.count for entry in entries)), ())
        rows = RowsToRead()
        shown = [self._shown(entry.tables, self._entry(entry, rows)) for entry in entries]
        records = NO_RECORDS.followed_by(*shown)
        return FilteredCommit(stamp, records, rows.removed_last())

    def _entry(self, entry: LogEntry, rows: RowsToRead) -> Records:
        all_visible = set(filter(self.viewer.sees_rows_of, entry.tables))
        if len(all_visible) == len(entry.tables):
            return Records((entry.records,), entry.count)
        if not entry.rule_rows:
            return self._delta_by_delta(entry, [None] * entry.count, all_visible, rows)
        rule_rows = decode_rule_rows(entry.rule_rows)
        visible = self._visible(rule_rows)
        if not all_visible and not any(visible) and None not in visible:
            return NO_RECORDS
        transitions = self._transitions(rule_rows, visible)
        if all(transition is Transition.CHANGE for transition in transitions):
            return Records((entry.records,), entry.count)
        return self._delta_by_delta(entry, transitions, all_visible, rows)

    def _visible(self, rule_rows: RuleRows) -> list[bool | None]:
        """Decide for each logged row whether it is visible; None if the log lacks the columns.

        The first one stands for a row that does not exist, which is hidden.
        """
        deciders = [self._decider(*table) for table in rule_rows.tables]
        visible: list[bool | None] = [False]
        for number, row in zip(rule_rows.of, rule_rows.rows, strict=True):
            decide = deciders[number]
            visible.append(decide and decide(row))
        return visible

    def _decider(self, table: str, logged: tuple[str, ...]) -> Callable[[bytes], bool] | None:
        """Get the decision on a table's logged rows; None if they lack columns that rules read."""
        key = (table, logged)
        if key not in self._deciders:
            decide = None
            if self.columns(table) <= {*logged}:
                decide = _of_logged_row(self.viewer.reader(table, logged), logged)
            self._deciders[key] = decide
        return self._deciders[key]

    def _transitions(
        self, rule_rows: RuleRows, visible: Sequence[bool | None]
    ) -> Sequence[Transition | None]:
        """Decide each delta of an entry; None where the log lacks the columns."""
        all_visible = {
            number
            for number, (table, _) in enumerate(rule_rows.tables)
            if self.viewer.sees_rows_of(table)
        }
        transitions: list[Transition | None] = []
        pairs = zip(rule_rows.before, rule_rows.after, strict=True)
        for index, (before, after) in enumerate(pairs):
            saw, sees = visible[before], visible[after]
            row = before or after
            if row and rule_rows.of[row - 1] in all_visible:
                transitions.append(Transition.CHANGE)
            elif saw is None or sees is None:
                transitions.append(None)
            else:
                transition = transition_of(saw, sees, ends=not after)
                is_whole_row = transition is Transition.ENTER and index in rule_rows.whole
                transitions.append(Transition.CHANGE if is_whole_row else transition)
        return transitions

    def _delta_by_delta(
        self,
        entry: LogEntry,
        transitions: Sequence[Transition | None],
        all_visible: Collection[str],
        rows: RowsToRead,
    ) -> Records:
        runs: list[bytes] = []
        for run, transition in zip(delta_slices(entry.records), transitions, strict=True):
            # Where every row is visible, so is the delete of one that did not exist.
            if transition is Transition.NOTHING and not (
                all_visible and decode_records(run)[0].table in all_visible
            ):
                continue
            if transition is Transition.CHANGE:
                runs.append(run)
            else:
                runs += self._in_place_of(run, transition, entry.stamp, rows)
        return Records((b"".join(runs),), len(runs)) if runs else NO_RECORDS

    def _in_place_of(
        self, run: bytes, transition: Transition | None, at: Stamp, rows: RowsToRead
    ) -> Sequence[bytes]:
        """Return what is sent in a delta's place; nothing if its row has to be read first."""
        (delta,) = decode_records(run)
        key = (delta.table, delta.row_id)
        if self.viewer.sees_rows_of(delta.table):
            return (run,)
        if transition is Transition.LEAVE:
            rows.removed.add(key)
            # Of a delete that leaves newer writes, which are hidden: why the row is gone.
            removal = encode_records([self._removal(*key, at)])
            return (run, removal) if delta.op is Op.DELETE else (removal,)
        if transition is Transition.END:
            return (run,) if delta.op is Op.DELETE else ()
        if self._config.appends(delta.table):
            # An event that was logged before there were rules; it is its own row.
            values = rule_columns(delta.columns, self.columns(delta.table))
            return (run,) if self.viewer.sees(delta.table, values) else ()
        if self.scope.of(delta.table) != NOTHING:
            rows.want(key)
        return ()

    def _removal(self, table: str, row_id: str, at: Stamp) -> Delta:
        if self._removes:
            return removal(table, row_id, at)
        return known_delta(Op.DELETE, table, row_id, GATEWAY_CLIENT, at, ())


def _of_logged_row(
    decide: Callable[[Sequence[CanonicalJson | None]], bool], logged: tuple[str, ...]
) -> Callable[[bytes], bool]:
    """Return a decision about a row as the log keeps it, which is usually one column's value."""
    if len(logged) == 1:
        return lambda row: decide((row or None,))
    return lambda row: decide(values_of(row))


# --- the token ------------------------------------------------------------------------------------


class Reads(Enum):
    ALL_TABLES = ALL_TABLES
    CHANGED_TABLES = "changed"
    """The tables for which rules or token claims decide differently now."""
    ROWS_OF_COMMIT = "commit"
    """Rows that one commit made visible, and that exceed one answer."""


_TOKEN: Final = re.compile(
    r"([0-9a-f]{1,16})\|(?:(all)(:[A-Za-z0-9_,]{1,2200})?|(changed|commit))\|([^|]*)\|([^|]*)\|((?:[A-Za-z_][A-Za-z0-9_]{0,63})?)\|(.*)",
    re.DOTALL,
)
_OF: Final = {
    Reads.ALL_TABLES: re.compile(r"([0-9a-f]{16}-[0-9a-f]{16})?"),
    Reads.CHANGED_TABLES: re.compile(r"[A-Za-z0-9_=-]+"),
    Reads.ROWS_OF_COMMIT: re.compile(r"[0-9a-f]{1,16}:[0-9]{1,9}"),
}


class ResumeToken(NamedTuple):
    """Where reading continues."""

    replay_from: Stamp
    """The log continues behind this stamp, once all rows were read."""
    epoch: str
    reads: Reads = Reads.ALL_TABLES
    of: str = ""
    """For all tables, the checkpoint they are read from, empty for the buffer. For changed tables,
    the digest of the scope in force. For a commit, its stamp and how many of its rows were sent."""
    table: str = ""
    """The table to read; empty if none is in progress."""
    position: str = ""
    """The position in the table, in the format of its `lakesync.gateway.bootstrap.RowSource`."""
    first: tuple[str, ...] = ()
    """For all tables, those that are read before the others."""

    def to_text(self) -> str:
        reads = f"{self.reads.value}:{','.join(self.first)}" if self.first else self.reads.value
        fields = (reads, self.of, self.epoch, self.table, self.position)
        return "|".join((f"{self.replay_from:x}", *fields))


def resume_token_of(text: str) -> ResumeToken:
    """Read what `ResumeToken.to_text` gave.

    Raises:
        ValidationFailed: it is malformed.
    """
    match = _TOKEN.fullmatch(text)
    if match:
        replay_from, of_all, first, of_some, of, epoch, table, position = match.groups()
        reads = Reads(of_all or of_some)
        if _OF[reads].fullmatch(of):
            tables = first_of(first) if first else ()
            return ResumeToken(int(replay_from, 16), epoch, reads, of, table, position, tables)
    raise ValidationFailed(
        "snapshot must be empty, begin, or that of the page before", field="snapshot"
    )


def check_cursor(pull: Pull, log: FinalLog) -> None:
    """Refuse a cursor that the log does not reach back to, or that belongs to another epoch.

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


def scoped(pull: Pull, log: FinalLog, rule_filter: RuleFilter) -> Pull:
    """Return a request with a scope where it needs one.

    The log below `LoggedColumns.since` cannot show which rows a reader was sent by earlier rules.
    So of a reader that has read a part of it, and hands back no scope, everything is unknown: what
    rules filter is read again.

    Raises:
        ValidationFailed: a re-sync continues only with the scope of its last page.
    """
    if pull.scope or rule_filter.viewer.sees_every_row:
        return pull
    if pull.snapshot and not begins(pull.snapshot):
        if resume_token_of(pull.snapshot).reads is Reads.CHANGED_TABLES:
            raise ValidationFailed("hand back the scope of the page as well", field="scope")
        return pull
    if pull.snapshot or not 0 < pull.since < log.config.logged.since:
        return pull
    return replace(pull, scope=rule_filter.scope.forgotten().text())


# --- the limit of one request ---------------------------------------------------------------------


READS_MAX: Final = 16
"""Reads of the log, of rows or of a checkpoint, of about 1 MB each, that one request makes to find
visible changes."""
READ_MS_MAX: Final = 10_000
"""How long one request keeps reading: its answer comes well within its function's 29 s."""


class Budget:
    """Counts the reads of one request."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._deadline_ms = wall_clock() + READ_MS_MAX
        self._reads = 0

    def allows_read(self) -> bool:
        """Count another read; True if it may be made. The first one is always allowed."""
        self._reads += 1
        in_time = self._reads <= READS_MAX and self._wall_clock() < self._deadline_ms
        return in_time or self._reads == 1


# --- the rows of a large commit -------------------------------------------------------------------


def rows_of(
    commit: FilteredCommit, rows: list[Records], log: FinalLog, since: Stamp, pull: Pull
) -> PullPage:
    """Return some of the rows that one commit made visible, if together they do not fit one answer.

    They are sent as they are, before the commit itself. The client's cursor stays before it.
    """
    records, sent = rows[0], 1
    for row in rows[1:]:
        if sent >= pull.deltas_max or records.size_bytes + row.size_bytes > pull.bytes_max:
            break
        records, sent = records.followed_by(row), sent + 1
    of = f"{commit.stamp:x}:{sent + commit.rows_sent}"
    token = ResumeToken(since, log.epoch, Reads.ROWS_OF_COMMIT, of)
    return PullPage(records.runs, records.deltas, log.top, has_more=True, snapshot=token.to_text())


def not_sent(commit: FilteredCommit, at: ResumeToken | None) -> FilteredCommit:
    """Return a commit without those of its rows that were sent in separate pages."""
    if at is None or at.reads is not Reads.ROWS_OF_COMMIT:
        return commit
    stamp, _, sent = at.of.partition(":")
    if int(stamp, 16) != commit.stamp:
        return commit
    return commit._replace(rows=commit.rows[int(sent) :], rows_sent=int(sent))
