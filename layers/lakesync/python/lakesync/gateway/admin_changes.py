"""Changes by administrators: the audit of each, and sync rules tried before they are saved.

Rules of the audit
    1. A record says who changed what, and when, the state before and after, and the outcome. It is
       written before its change is made; if it cannot be written, nothing is changed.
    2. Its outcome is written after the change. If that write is lost, the record says `begun`.
    3. A request is one record; the same request again is another.
    4. A state contains only what an administrator may read: never a secret.

Laws J1-J3: ``docs/spec/audit.md``.

A trial of rules says which rows a client would see, gain and lose. Row states are read as they are
and decided twice by the same visibility function: by the rules on trial, and by those in force.
Nothing is written. A trial reads no more than its bounds allow; one that ends early says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.core.names import folded
from lakesync.core.visibility import Viewer, rule_values
from lakesync.core.wording import utc_text
from lakesync.ports import AuditOutcome, AuditRecord
from lakesync.ports.stores import id_of_time
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.merge import RowState
    from lakesync.core.rules import SyncRules
    from lakesync.core.visibility import Claims, RuleValues
    from lakesync.errors import Fault
    from lakesync.ports import AuditQuery, AuditStore, Buffer, WallClock

    ReadsRules = Callable[[GatewayConfig], tuple[SyncRules, list[Fault]]]
    """Returns the declared rules, with warnings, by the configuration that they must fit."""

# --- the audit ------------------------------------------------------------------------------------


AUDIT_DAYS: Final = 400
"""How long a record is kept: a year, and another month in which it may be asked for."""
STATE_BYTES_MAX: Final = 4_096
"""The largest state that is stored in a record; a larger one is replaced by its digest and size."""
TARGET_CHARACTERS_MAX: Final = 300
"""The part of a target's name that is stored: longer than any name."""
_DAY_S: Final = 86_400
NOT_KNOWN: Final = "the state could not be read"


class Who(NamedTuple):
    """The user who requests a change."""

    user: str
    role: str
    request: str = ""
    """The request's id."""


class Audit:
    """Writes and reads the records of administrative changes."""

    def __init__(
        self, store: AuditStore, *, wall_clock: WallClock, token: Callable[[], str]
    ) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._token = token

    def begin(
        self, gateway: str, who: Who, operation: str, target: str, before: object
    ) -> AuditRecord:
        """Write that a change is about to be made.

        Raises:
            lakesync.errors.Unavailable: it was not written: make no change.
        """
        now_ms = self._wall_clock()
        record = AuditRecord(
            gateway,
            f"{id_of_time(now_ms)}-{self._token()}",
            now_ms,
            who.user,
            who.role,
            operation,
            _text(target[:TARGET_CHARACTERS_MAX]),
            who.request,
            stated(before),
        )
        self._store.begin(record, now_ms // 1000 + AUDIT_DAYS * _DAY_S)
        return record

    def end(
        self, record: AuditRecord, outcome: AuditOutcome, after: object, code: str = ""
    ) -> None:
        """Write the outcome of a change.

        Raises:
            lakesync.errors.Unavailable: it is not known whether that was written.
        """
        ended = replace(
            record, outcome=outcome, after=stated(after), code=code, ended_ms=self._wall_clock()
        )
        self._store.end(ended)

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Get records, the latest first, and the id below which to continue, or "" at the end."""
        return self._store.records(gateway, query)


def record_to_json(record: AuditRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": record.id,
        "at": utc_text(record.at_ms, "milliseconds"),
        "who": record.user,
        "role": record.role,
        "operation": record.operation,
        "target": record.target,
        "outcome": record.outcome.value,
        "requestId": record.request,
        "before": json.loads(record.before),
    }
    if record.outcome is AuditOutcome.STARTED:
        return shown
    shown |= {
        "after": json.loads(record.after),
        "endedAt": utc_text(record.ended_ms, "milliseconds"),
    }
    return shown | ({"code": record.code} if record.code else {})


def stated(state: object) -> str:
    """Return a state as JSON text; for a large one, its digest and size."""
    text = _text(json.dumps(state, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    encoded = text.encode()
    if len(encoded) <= STATE_BYTES_MAX:
        return text
    return json.dumps({"sha256": sha256(encoded).hexdigest(), "bytes": len(encoded)})


def _text(text: str) -> str:
    """Return text that can be stored: JSON can contain halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


# --- rules on trial -------------------------------------------------------------------------------


TRIAL_MS_MAX: Final = 10_000
"""How long a trial reads rows: well within the 30 s that API Gateway waits."""
TRIAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Row states that a trial reads, as they are stored; DynamoDB bills them as 16,000 read units."""
TRIAL_ROWS_SHOWN_MAX: Final = 5
"""Rows that are shown of each group: those seen, those that would enter, those that would leave."""
TRIAL_ROW_SHOWN_BYTES_MAX: Final = 4_096
"""Values that are shown of one row; columns that would exceed this are left out."""
TRIAL_SHOWN_BYTES_MAX: Final = 1024 * 1024
"""Values that are shown in one answer; beyond this, rows are only counted."""
_SLICE_ROWS: Final = 1_000


@dataclass(slots=True)
class Shown:
    """Some rows: their number, and the first few of them."""

    count: int = 0
    rows: list[dict[str, object]] = field(default_factory=list)


@dataclass(slots=True)
class TableTrial:
    """What the rules on trial would do with one table."""

    table: str
    append: bool
    """Its rows are events, which have no row states: they are not counted."""
    buckets: tuple[str, ...]
    """The buckets that include it."""
    writers: str
    """Who may write its rows: one of `lakesync.core.rules.WRITERS`."""
    changes: bool
    """Whether the rules in force differ for it."""
    omitted: tuple[str, ...]
    """Columns that are left out: for the client, or, without its token claims, for any client."""
    seen: Shown | None = None
    """The rows that the client would see; None for events, and without a client's token claims."""
    seen_in_force: int = 0
    """How many it sees under the rules in force."""
    enter: Shown = field(default_factory=Shown)
    leave: Shown = field(default_factory=Shown)
    complete: bool = True
    """Whether all of its rows were read."""


class Trial:
    """One trial of rules that have no fault."""

    def __init__(
        self, buffer: Buffer, gateway: str, config: GatewayConfig, reads: ReadsRules
    ) -> None:
        """Read the rules.

        Raises:
            RulesRefused: they are malformed, or do not fit the schemas; names every fault.
        """
        self._buffer = buffer
        self._gateway = gateway
        self._config = config
        self._rules, _ = reads(config)
        self._bytes_left = TRIAL_BYTES_MAX
        self._shown_bytes_left = TRIAL_SHOWN_BYTES_MAX

    def tables(self) -> list[TableTrial]:
        """Return every table that exists or that the rules name, with what concerns it."""
        known = {*self._config.schemas, *self._config.tables, *self._rules.tables()}
        return [self._table(name) for name in sorted(known)]

    def tables_as(self, claims: Claims, wall_clock: WallClock) -> list[TableTrial]:
        """Return the same with the rows of a client that has these claims.

        Cost: one read unit for each 4 KB of rows in tables of which either rules can show a row.
        """
        deadline_ms = wall_clock() + TRIAL_MS_MAX
        tried, in_force = Viewer(self._rules, claims), Viewer(self._config.rules, claims)
        trials = self.tables()
        for trial in trials:
            if trial.append:
                continue
            trial.seen = Shown()
            trial.omitted = tuple(sorted(tried.omitted(trial.table)))
            if not (tried.may_see(trial.table) or in_force.may_see(trial.table)):
                continue
            columns = self._rules.columns(trial.table) | self._config.rules.columns(trial.table)
            for row_id, state in self._rows(trial, wall_clock, deadline_ms):
                values = rule_values(state, columns)
                row = _row_as(tried, trial.table, values, state)
                row_in_force = _row_as(in_force, trial.table, values, state)
                trial.seen_in_force += row_in_force is not None
                if row is not None:
                    self._show(trial.seen, row_id, row)
                if row is not None and row_in_force is None:
                    self._show(trial.enter, row_id, row)
                if row is None and row_in_force is not None:
                    self._show(trial.leave, row_id, row_in_force)
        return trials

    def _table(self, name: str) -> TableTrial:
        covering = self._rules.covering(name)
        return TableTrial(
            name,
            self._config.appends(name),
            tuple(bucket.name for bucket in covering),
            self._rules.writers(name),
            _meaning(self._rules, name) != _meaning(self._config.rules, name),
            tuple(sorted(Viewer(self._rules, {}).omitted(name))),
        )

    def _rows(
        self, trial: TableTrial, wall_clock: WallClock, deadline_ms: int
    ) -> Iterator[tuple[str, RowState]]:
        place = ""
        while True:
            if self._bytes_left <= 0 or wall_clock() >= deadline_ms:
                trial.complete = False
                return
            row_slice = self._buffer.scan_rows(self._gateway, trial.table, place, _SLICE_ROWS)
            for row_id, row in row_slice.rows:
                self._bytes_left -= len(row.state)
                yield row_id, self._config.as_read(trial.table, decode_row_state(row.state))
            if not row_slice.place:
                return
            place = row_slice.place

    def _show(self, shown: Shown, row_id: str, row: Mapping[str, CanonicalJson]) -> None:
        shown.count += 1
        if len(shown.rows) >= TRIAL_ROWS_SHOWN_MAX or self._shown_bytes_left <= 0:
            return
        columns: dict[str, object] = {}
        left = TRIAL_ROW_SHOWN_BYTES_MAX
        values = sorted(row.items())
        for name, raw in values:
            if len(raw) <= left:
                left -= len(raw)
                columns[name] = parse(raw)
        self._shown_bytes_left -= TRIAL_ROW_SHOWN_BYTES_MAX - left + len(row_id)
        item: dict[str, object] = {"rowId": row_id, "columns": columns}
        shown.rows.append(item if len(columns) == len(values) else item | {"cut": True})


def _row_as(
    viewer: Viewer, table: str, values: RuleValues | None, state: RowState
) -> dict[str, CanonicalJson] | None:
    """Return a row as a client would have it; None if it would not."""
    return view(viewer.shown_state(table, state)) if viewer.sees(table, values) else None


def _meaning(rules: SyncRules, table: str) -> object:
    # Compared by their text: to Python, 1 is True.
    omit = {
        (repr(sorted(map(folded, each.columns))), repr(sorted(map(repr, each.unless))))
        for each in rules.omit
        if not each.tables or folded(table) in map(folded, each.tables)
    }
    if not rules.buckets:
        return None, omit
    buckets = {
        (repr(sorted(map(repr, bucket.filters))), repr(bucket.write))
        for bucket in rules.covering(table)
    }
    return buckets, omit


def trial_to_json(tables: list[TableTrial]) -> dict[str, object]:
    """Write the result of a trial, as ``POST /admin/sync-rules?dryRun=true`` returns it."""
    return {
        "saved": False,
        "complete": all(trial.complete for trial in tables),
        "tables": [_table_to_json(trial) for trial in tables],
    }


def _table_to_json(trial: TableTrial) -> dict[str, object]:
    answer: dict[str, object] = {
        "table": trial.table,
        "buckets": list(trial.buckets),
        "writers": trial.writers,
        "changes": trial.changes,
        "append": trial.append,
        "omitted": list(trial.omitted),
    }
    if trial.seen is None:
        return answer
    return answer | {
        "complete": trial.complete,
        "inForce": trial.seen_in_force,
        "seen": _shown_to_json(trial.seen),
        "enter": _shown_to_json(trial.enter),
        "leave": _shown_to_json(trial.leave),
    }


def _shown_to_json(shown: Shown) -> dict[str, object]:
    return {"count": shown.count, "rows": shown.rows}
