"""What one client sees of a gateway's log and rows. All that a pull gives passes through here.

A delta is decided by its row as it was at that commit, which the log keeps as far as rules look at
it; where they look at more than was kept, by the row as it is now. A row that comes into sight is
sent whole, as it is now, and only if it is in sight now: else its removal is further on.
Laws V4 and V7: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.core.delta import GATEWAY_CLIENT, Delta, Op, checked_delta, removal
from lakesync.core.merge import fold
from lakesync.core.scope import EVERYTHING, NOTHING
from lakesync.core.transition import Transition, transition_of
from lakesync.core.unmerge import as_one, deltas_of
from lakesync.core.visibility import Viewer, rule_columns, rule_values
from lakesync.errors import Contention
from lakesync.wire.records import decode_records, encode_records
from lakesync.wire.row_state import decode_row_state
from lakesync.wire.rule_rows import decode_rule_rows, delta_slices, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull
    from lakesync.core.values import CanonicalJson
    from lakesync.ports import Buffer, LogEntry, RowKey, RowSlice
    from lakesync.wire.row_records import RowRun
    from lakesync.wire.rule_rows import RuleRows


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of one commit."""

    records: tuple[bytes, ...]
    count: int

    @property
    def size_bytes(self) -> int:
        """The bytes of the records."""
        return sum(map(len, self.records))


class Sight:
    """One client's sight of one gateway, for as long as one request takes."""

    def __init__(self, buffer: Buffer, gateway: str, config: GatewayConfig, pull: Pull) -> None:
        self._buffer = buffer
        self._gateway = gateway
        self._config = config
        self._removes = pull.removes
        # Who names a scope, or begins, holds only what these very rules and claims have shown.
        self._holds_more = pull.since > 0 and not pull.scope
        self._rules = config.rules if pull.rules is None else pull.rules
        self._viewer = Viewer(self._rules, pull.claims, config.logged.generation)
        self._columns: dict[str, frozenset[str]] = {}
        self._deciders: dict[tuple[str, tuple[str, ...]], Callable[[bytes], bool] | None] = {}
        self.scope = self._viewer.scope()
        """What decides all this."""

    @property
    def is_whole(self) -> bool:
        """Tell whether the client sees everything."""
        return self._viewer.sees_everything

    def of(self, commit: list[LogEntry]) -> Seen:
        """Give what the client sees of a commit.

        Raises:
            Contention: a row that the commit wrote is just becoming visible; try again in a moment.
        """
        if self.is_whole:
            records = tuple(entry.records for entry in commit)
            return Seen(records, sum(entry.count for entry in commit))
        parts = [self._entry(entry) for entry in commit]
        records = tuple(run for part in parts for run in part.records if run)
        return Seen(records, sum(part.count for part in parts))

    def row(self, table: str, row_id: str, state: RowState) -> list[Delta]:
        """Give a row as the client sees it: as deltas that merge to it, none if it is hidden."""
        if self.scope.of(table) == EVERYTHING:
            return deltas_of(table, row_id, state)
        if not self._viewer.sees(table, rule_values(state, self.columns(table))):
            return []
        return deltas_of(table, row_id, state) if self._removes else as_one(table, row_id, state)

    def rows(self, table: str, found: RowSlice) -> list[Delta]:
        """Give rows as the buffer holds them, each as `row` does."""
        return [
            delta
            for row_id, stored in found.rows
            for delta in self.row(table, row_id, decode_row_state(stored.state))
        ]

    def columns(self, table: str) -> frozenset[str]:
        """Give the columns of a table that the rules in force look at."""
        found = self._columns.get(table)
        if found is None:
            found = self._columns[table] = self._rules.columns(table)
        return found

    def row_run(self, table: str, row: RowRun) -> Seen:
        """Give a row as the client sees it, as `row` does, out of the run of its deltas."""
        if self.scope.of(table) == EVERYTHING:
            return Seen((row.run,), row.deltas)
        values = row.values and rule_columns(row.values.items(), self.columns(table))
        if row.values is None or not self._viewer.sees(table, values):
            return Seen((), 0)
        if self._removes:
            return Seen((row.run,), row.deltas)
        deltas = as_one(table, row.row_id, fold(decode_records(row.run)))
        return Seen((encode_records(deltas),), len(deltas))

    # --- one entry --------------------------------------------------------------------------------

    def _entry(self, entry: LogEntry) -> Seen:
        whole = {table for table in entry.tables if self.scope.of(table) == EVERYTHING}
        if len(whole) == len(entry.tables):
            return Seen((entry.records,), entry.count)
        if not entry.rule_rows:
            return self._cut(entry, [None] * entry.count, whole)
        held = decode_rule_rows(entry.rule_rows)
        seen = self._seen(held)
        if not whole and not any(seen) and None not in seen:
            return Seen((), 0)
        verdicts = self._verdicts(held, seen)
        if all(verdict is Transition.CHANGE for verdict in verdicts):
            return Seen((entry.records,), entry.count)
        return self._cut(entry, verdicts, whole)

    def _seen(self, held: RuleRows) -> list[bool | None]:
        """Tell of each row whether it is seen, None where the log does not tell; of no row, no."""
        deciders = [self._decider(*table) for table in held.tables]
        seen: list[bool | None] = [False]
        for number, row in zip(held.of, held.rows, strict=True):
            decide = deciders[number]
            seen.append(decide and decide(row))
        return seen

    def _decider(self, table: str, kept: tuple[str, ...]) -> Callable[[bytes], bool] | None:
        """Give what decides a table's logged rows; None if they lack what the rules look at."""
        key = (table, kept)
        if key not in self._deciders:
            told = self.columns(table) <= {*kept}
            self._deciders[key] = _by_row(self._viewer.reader(table, kept), kept) if told else None
        return self._deciders[key]

    def _verdicts(self, held: RuleRows, seen: Sequence[bool | None]) -> Sequence[Transition | None]:
        """Decide each delta of an entry; None where the log does not tell."""
        all_seen = {
            number
            for number, (table, _) in enumerate(held.tables)
            if self.scope.of(table) == EVERYTHING
        }
        found: list[Transition | None] = []
        for place, (before, after) in enumerate(zip(held.before, held.after, strict=True)):
            saw, sees = seen[before], seen[after]
            row = before or after
            if row and held.of[row - 1] in all_seen:
                found.append(Transition.CHANGE)
            elif saw is None or sees is None:
                found.append(None)
            else:
                verdict = transition_of(saw, sees, ends=not after)
                is_whole = verdict is Transition.ENTER and place in held.whole
                found.append(Transition.CHANGE if is_whole else verdict)
        return found

    def _cut(
        self, entry: LogEntry, verdicts: Sequence[Transition | None], whole: Collection[str]
    ) -> Seen:
        runs: list[bytes] = []
        count = 0
        asked: dict[RowKey, bool] = {}
        for run, verdict in zip(delta_slices(entry.records), verdicts, strict=True):
            # Where every row is seen, so is the delete of one that was not there yet.
            if verdict is Transition.NOTHING and not (whole and _table_of(run) in whole):
                continue
            kept = run
            if verdict is not Transition.CHANGE:
                kept = self._instead(run, verdict, entry.stamp, asked)
            if kept:
                runs.append(kept)
                count += 1
        made = self._as_they_are(entry.stamp, asked)
        return Seen((b"".join(runs), encode_records(made)), count + len(made))

    def _instead(
        self, run: bytes, verdict: Transition | None, at: Stamp, asked: dict[RowKey, bool]
    ) -> bytes:
        """Give what is sent in a delta's place, or ask for its row."""
        (delta,) = decode_records(run)
        if self.scope.of(delta.table) == EVERYTHING:
            return run
        if verdict is Transition.LEAVE:
            return encode_records([self._removal(delta.table, delta.row_id, at)])
        if verdict is Transition.END:
            return run if delta.op is Op.DELETE else b""
        if self._config.appends(delta.table):
            # An event that was logged before there were rules; it is its own row.
            row = rule_columns(delta.columns, self.columns(delta.table))
            sees = self._viewer.sees(delta.table, row)
            return run if sees else b""
        if self.scope.of(delta.table) == NOTHING and not self._holds_more:
            return b""
        key = (delta.table, delta.row_id)
        asked[key] = asked.get(key, False) or (verdict is None and self._holds_more)
        return b""

    def _as_they_are(self, at: Stamp, asked: dict[RowKey, bool]) -> list[Delta]:
        """Give rows that came into sight, or of which the log does not tell whether they left."""
        held = self._buffer.rows(self._gateway, asked) if asked else {}
        found: list[Delta] = []
        for key, may_have_left in asked.items():
            stored = held.get(key)
            if stored is None or stored.commit < at:
                raise Contention("a row is just becoming visible; try again in a moment")
            row = self.row(*key, decode_row_state(stored.state))
            if not row and may_have_left:
                row = [self._removal(*key, at)]
            found += row
        return found

    def _removal(self, table: str, row_id: str, at: Stamp) -> Delta:
        if self._removes:
            return removal(table, row_id, at)
        return checked_delta(Op.DELETE, table, row_id, GATEWAY_CLIENT, at, ())


def _table_of(run: bytes) -> str:
    (delta,) = decode_records(run)
    return delta.table


def _by_row(
    decide: Callable[[Sequence[CanonicalJson | None]], bool], kept: tuple[str, ...]
) -> Callable[[bytes], bool]:
    """Give a decision about a row as the log keeps it, which is mostly one column's value."""
    if len(kept) == 1:
        return lambda row: decide((row or None,))
    return lambda row: decide(values_of(row))
