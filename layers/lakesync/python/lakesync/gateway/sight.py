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
from lakesync.core.unmerge import deltas_of
from lakesync.core.visibility import Transition, Viewer, rule_columns, rule_values
from lakesync.errors import Contention
from lakesync.wire.records import decode_records, encode_records
from lakesync.wire.row_state import decode_row_state
from lakesync.wire.rule_rows import decode_rule_rows, delta_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull
    from lakesync.ports import Buffer, LogEntry, RowKey
    from lakesync.wire.rule_rows import RuleRow


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
        self._viewer = Viewer(config.rules, pull.claims)
        self.scope = self._viewer.digest()

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
        if self.is_whole:
            return deltas_of(table, row_id, state)
        if not self._viewer.sees(table, rule_values(state, self._config.rules.columns(table))):
            return []
        return deltas_of(table, row_id, state) if self._removes else _as_one(table, row_id, state)

    # --- one entry --------------------------------------------------------------------------------

    def _entry(self, entry: LogEntry) -> Seen:
        verdicts = list(self._verdicts(entry))
        distinct = set(verdicts)
        if distinct == {Transition.CHANGE}:
            return Seen((entry.records,), entry.count)
        if distinct == {Transition.NOTHING}:
            return Seen((), 0)
        return self._cut(entry, verdicts)

    def _verdicts(self, entry: LogEntry) -> Iterator[Transition | None]:
        """Decide each delta of an entry; None where the log does not tell."""
        if not entry.rule_rows or entry.stamp <= self._config.rules_since:
            yield from [None] * entry.count
            return
        held = decode_rule_rows(entry.rule_rows)
        decided: dict[tuple[int, int], Transition] = {}
        for place, pair in enumerate(zip(held.before, held.after, strict=True)):
            found = decided.get(pair)
            if found is None:
                before, after = (held.rows[at - 1] if at else None for at in pair)
                found = decided[pair] = self._transition(before, after)
            if found is Transition.ENTER and place in held.whole:
                found = Transition.CHANGE
            yield found

    def _transition(self, before: RuleRow | None, after: RuleRow | None) -> Transition:
        row = before or after
        if row is None:
            return Transition.NOTHING  # deleted before it was there: nobody saw it
        return self._viewer.transition(row[0], before and before[1], after and after[1])

    def _cut(self, entry: LogEntry, verdicts: list[Transition | None]) -> Seen:
        runs: list[bytes] = []
        count = 0
        asked: dict[RowKey, bool] = {}
        for run, verdict in zip(delta_slices(entry.records), verdicts, strict=True):
            if verdict is Transition.NOTHING:
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
        if verdict is Transition.LEAVE:
            return encode_records([self._removal(delta.table, delta.row_id, at)])
        if verdict is Transition.END:
            return run if delta.op is Op.DELETE else b""
        if self._config.appends(delta.table):
            # An event that was logged before there were rules; it is its own row.
            columns = self._config.rules.columns(delta.table)
            sees = self._viewer.sees(delta.table, rule_columns(delta.columns, columns))
            return run if sees else b""
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


def _as_one(table: str, row_id: str, state: RowState) -> list[Delta]:
    """Give a row as one insert, for clients that keep no stamps and go by the order of deltas."""
    writes = [(hlc, client_id) for hlc, client_id, _ in state.columns.values()]
    hlc, client_id = max([*writes, (state.alive, GATEWAY_CLIENT)])
    columns = tuple((name, held[2]) for name, held in state.columns.items())
    return [checked_delta(Op.INSERT, table, row_id, client_id, hlc, columns)]
