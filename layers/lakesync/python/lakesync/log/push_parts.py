"""A push, cut into parts of one commit each, and the effect of each on the rows it touches. Pure.

Edits keep their order inside a shard; events, the deltas of append tables, are ordered by their
stamps. A push that fits into one commit is not cut, and so is atomic even across shards.

A part is merged again after each lost race. Sync rules decide whether the client may write a row,
and which of its columns are logged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.delta import COLUMNS_MAX, Op
from lakesync.core.layout import lane_shard
from lakesync.core.merge import (
    EMPTY,
    Admission,
    Gate,
    advanced,
    apply,
    may_undo_a_deletion,
    state_of,
)
from lakesync.core.names import folded
from lakesync.core.visibility import rule_values
from lakesync.errors import (
    ColumnOmitted,
    Forbidden,
    OutOfOrder,
    RowDeleted,
    RowForgotten,
    RowTooLarge,
)
from lakesync.log.lanes import room_bytes
from lakesync.ports import NO_HEAD, LaneCommit, LogEntry, MarkPut, RowPut
from lakesync.wire.log_entries import RuleRowsWriter, encode_chunk
from lakesync.wire.records import encode_records, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.visibility import RuleValues, Viewer
    from lakesync.errors import LakeSyncError
    from lakesync.log.lanes import Limits
    from lakesync.log.row_cache import CachedGateway, CachedRow
    from lakesync.ports import MarkKey, RowKey, StoredMark

# --- cutting a push into commits ------------------------------------------------------------------


_OVERHEAD_BYTES: int = 160
"""An upper bound of a delta's fields besides names and values: id, stamp, tags and lengths."""
_COLUMN_OVERHEAD_BYTES: int = 12
_CHARACTER_BYTES: int = 4

Admitted: TypeAlias = "tuple[int, Delta]"
"""A delta with its place in the push."""


class Part(NamedTuple):
    """Deltas that become visible at one stamp, by shard."""

    shards: dict[str, list[Admitted]]
    marks: frozenset[MarkKey] = frozenset()
    """The append marks that its events touch."""
    since: Stamp = 0
    """The oldest stamp of all events of the push; 0 if it has none."""
    epoch: str | None = None
    """The epoch that its client knows; None if the push does not name one."""
    revives: bool = False
    """`lakesync.core.messages.Push.revives`."""

    def row_keys(self, appends: Callable[[str], bool]) -> list[RowKey]:
        """Return the rows that its edits touch; events have none."""
        deltas = [delta for admitted in self.shards.values() for _, delta in admitted]
        return [(delta.table, delta.row_id) for delta in deltas if not appends(delta.table)]


def cut(admitted: Sequence[Admitted], config: GatewayConfig, limits: Limits) -> list[Part]:
    """Cut a push into commits that fit, in order; one commit if all of it fits."""
    events = [item for item in admitted if config.appends(item[1].table)]
    since: Stamp = 0
    if events:
        events.sort(key=lambda item: item[1].hlc)
        since = events[0][1].hlc
        admitted = [item for item in admitted if not config.appends(item[1].table)] + events
    return [
        Part(part, _marks(part, config) if since else frozenset(), since)
        for part in _fitting(admitted, config, limits)
    ]


def _marks(shards: dict[str, list[Admitted]], config: GatewayConfig) -> frozenset[MarkKey]:
    return frozenset(
        (shard, delta.client_id)
        for shard, admitted in shards.items()
        for _, delta in admitted
        if config.appends(delta.table)
    )


def _fitting(
    admitted: Sequence[Admitted], config: GatewayConfig, limits: Limits
) -> Iterator[dict[str, list[Admitted]]]:
    shards: dict[str, list[Admitted]] = {}
    sizes: dict[str, int] = {}
    things: set[tuple[str, str, str]] = set()  # distinct rows and marks: one item each
    total = 0
    shard_of, appends = config.layout.shard_of, config.appends
    for item in admitted:
        delta = item[1]
        table = delta.table
        shard = shard_of(table)
        thing = (shard, "", delta.client_id) if appends(table) else (shard, table, delta.row_id)
        size = delta_bytes(delta)
        items = 2 * (len(sizes) + (shard not in sizes)) + len(things) + (thing not in things)
        full = (
            items > limits.commit_items_max
            or sizes.get(shard, 0) + size > limits.entry_bytes_max
            or total + size > limits.commit_entries_bytes_max
        )
        if full and shards:
            yield shards
            shards, sizes, things, total = {}, {}, set(), 0
        shards.setdefault(shard, []).append(item)
        sizes[shard] = sizes.get(shard, 0) + size
        total += size
        things.add(thing)
    if shards:
        yield shards


def delta_bytes(delta: Delta) -> int:
    """Return a cheap upper bound of a delta's encoded size."""
    _, table, row_id, client_id, _, columns, _ = delta
    size = _OVERHEAD_BYTES + _CHARACTER_BYTES * (len(row_id) + len(client_id)) + len(table)
    for name, value in columns:
        size += len(name) + len(value) + _COLUMN_OVERHEAD_BYTES
    return size


# --- sync rules applied to a push -----------------------------------------------------------------


_FORBIDDEN: Final = "the sync rules do not let you change this row, before or after the change"
_OMITTED: Final = (
    "the sync rules leave a column out of what you are sent, which you cannot write either; leave "
    "it out of the change"
)
_DELETED: Final = (
    "the row was deleted, and rules filter its table: of an update alone they cannot tell who may "
    "see it; sync, and insert the whole row if it is still wanted"
)
_RULE_ROW_OVERHEAD_BYTES: Final = 8
"""An upper bound of a row's or column's cost besides its name and value."""


class WriteRules:
    """Decides on the deltas of one part of a push, shard by shard."""

    def __init__(
        self, config: GatewayConfig, viewer: Viewer, limits: Limits, *, revives: bool = False
    ) -> None:
        self._config = config
        self._rules = config.rules
        self._viewer = viewer
        self._revives = revives
        self._bytes_max = limits.entry_rules_bytes_max
        self._columns: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin another shard's entry."""
        self._before: dict[RowKey, RowState] = {}
        self._size_bytes = 0

    def is_full(self) -> bool:
        """Return whether the entry has no room for the logged columns of one more delta."""
        return self._size_bytes > self._bytes_max

    def may_write(self, key: RowKey, before: RowState, after: RowState | None) -> bool:
        """Return whether the client may change a row so, or delete it: then there is no ``after``.

        The decision uses the row as it was before the commit: a client may give a row away and, in
        the same transaction, write the rest of it. If deletes win and the row does not exist, the
        decision uses what was written after the delete and would stay; so nobody can make it
        visible to themselves.
        """
        _, columns = self._of(key[0])
        before = self._before.get(key, before)
        written = after.columns if after else {}
        stays = any(written.get(name) == one for name, one in before.columns.items())
        before = before if stays else self._config.as_read(key[0], before)
        rows = (rule_values(before, columns), after and rule_values(after, columns))
        return self._viewer.may_write(key[0], *rows)

    def refusal(self, delta: Delta, before: RowState, after: RowState) -> LakeSyncError | None:
        """Return why the client may not make a change; None if it may.

        A client may not write a column that is left out of what it is sent, whatever the row is.
        `RowDeleted` is of the row as it is by now: an INSERT behind may still make it.
        """
        if self._viewer.shown(delta) is not delta:
            return ColumnOmitted(_OMITTED, field="columns")
        # What a delete leaves of later updates is no row that its writer makes.
        made = None if delta.op is Op.DELETE else after
        if not self.may_write((delta.table, delta.row_id), before, made):
            return Forbidden(_FORBIDDEN)
        if self._lacks_the_rest(delta, before, after):
            return RowDeleted(_DELETED)
        return None

    def _lacks_the_rest(self, delta: Delta, before: RowState, after: RowState) -> bool:
        """Return whether a change would make a row of which too little is left for the rules.

        An update of a deleted row has only its own columns. So has one of a row that is not there,
        if the table's deletions may have been forgotten. An INSERT is a whole row, unless its
        writer is not sent the columns that rules read.
        """
        table = delta.table
        exists = before.alive or before.columns
        if exists or self._revives or self._viewer.sees_rows_of(table):
            return False
        if delta.op is Op.DELETE:
            return False  # it makes no row
        if delta.op is Op.UPDATE and before.deleted:
            return not self._config.delete_wins(table)
        was_there = before.deleted or self._config.tombstone_horizons.get(table)
        if not was_there or self._config.as_read(table, after) is not after:
            return False
        columns = self._rules.columns(table)
        if delta.op is Op.INSERT and not self._viewer.omitted(table) & set(map(folded, columns)):
            return False
        return not self._viewer.sees(table, rule_values(after, columns))

    def note(self, key: RowKey, before: RowState, after: RowState) -> None:
        """Note that the entry changes a row."""
        columns, _ = self._of(key[0])
        if key not in self._before:
            self._before[key] = before
            self._size_bytes += _size(self._values(key, before, columns))
        self._size_bytes += _size(self._values(key, after, columns))

    def encoded(self, deltas: Sequence[Delta], rows: Mapping[RowKey, RowState]) -> bytes:
        """Get the columns that the rules read of an entry's rows: before the commit, and after it.

        Args:
            deltas: the entry's, in order.
            rows: the rows after the commit; an event's row is the event.
        """
        if not self._rules.buckets and not self._config.logged:
            return b""  # rules that only leave columns out read no row
        writer = RuleRowsWriter(lambda table: sorted(self._of(table)[0]))
        keys = [(delta.table, delta.row_id) for delta in deltas]
        times = Counter(keys)
        for key, delta in zip(keys, deltas, strict=True):
            columns, _ = self._of(delta.table)
            before, after = self._before.get(key, EMPTY), rows.get(key) or state_of(delta)
            rule_rows = self._values(key, before, columns), self._values(key, after, columns)
            # A deleted row also consists of its delete: the delta is not the whole row.
            alone = times[key] == 1 and before == EMPTY
            writer.add(delta.table, *rule_rows, alone=alone)
        return writer.encoded()

    def _values(self, key: RowKey, state: RowState, columns: frozenset[str]) -> RuleValues | None:
        return rule_values(self._config.as_read(key[0], state), columns)

    def _of(self, table: str) -> tuple[frozenset[str], frozenset[str]]:
        columns = self._columns.get(table)
        if columns is None:
            kept = self._config.logged.of(table)
            decisive = self._rules.columns(table) | self._rules.write_columns(table)
            columns = self._columns[table] = (kept, decisive)
        return columns


def _size(row: RuleValues | None) -> int:
    return _RULE_ROW_OVERHEAD_BYTES + sum(
        _RULE_ROW_OVERHEAD_BYTES + len(n) + len(v) for n, v in (row or {}).items()
    )


# --- the merge ------------------------------------------------------------------------------------


RECENT_BYTES_MAX: Final = 1_300
"""Log entries that stay in their lane's head, before deflating. With the head they then take less
than a KB, for which a transaction costs two write units. Fewer where there are several shards."""
ENTRY_OVERHEAD_BYTES: Final = 40
_FORGOTTEN = (
    "the edit is older than this gateway remembers deletions, and its row may have been deleted; "
    "sync, and make the edit again if it is still wanted"
)
_LATE = "an append delta must be newer than its client's last accepted one; stamp it again and push"


@dataclass(slots=True)
class Outcome:
    """The outcome of a part: effective deltas, the rows after them, and the rest with reasons."""

    effective: dict[str, list[Delta]] = field(default_factory=dict)
    """By shard, the deltas that change at least one register, in their order."""
    rows: dict[RowKey, RowState] = field(default_factory=dict)
    puts: dict[RowKey, RowPut] = field(default_factory=dict)
    """The same rows, encoded."""
    puts_bytes: int = 0
    marks: dict[MarkKey, MarkPut] = field(default_factory=dict)
    """The append marks after the commit."""
    duplicates: list[Admitted] = field(default_factory=list)
    refused: list[tuple[Admitted, LakeSyncError]] = field(default_factory=list)
    unproved: set[RowKey] = field(default_factory=set)
    """Rows for a decision that no commit condition protects: a refusal, or that a delta is an old
    duplicate. They may have changed since they were read."""
    unproved_marks: set[MarkKey] = field(default_factory=set)
    """The same for append marks."""
    rest: dict[str, list[Admitted]] = field(default_factory=dict)
    """By shard, deltas that do not fit the same commit, because the rows they touch are large."""
    rule_rows: dict[str, bytes] = field(default_factory=dict)
    """By shard, the columns that sync rules read; see `lakesync.wire.log_entries`."""
    stamp: Stamp = 0
    """The commit's stamp; if nothing had to be committed, the latest known commit."""

    def refuse(self, item: Admitted, refusal: LakeSyncError, seen: Stamp) -> None:
        """Note that an edit is refused, by its row as the commit `seen` wrote it."""
        delta = item[1]
        self.refused.append((item, refusal))
        self.unproved.add((delta.table, delta.row_id))
        self.stamp = max(self.stamp, seen)

    def repeat(self, item: Admitted, seen: Stamp) -> None:
        """Note that a delta changes nothing in what the commit `seen` wrote.

        That commit may be newer than the heads that were read before it, and may have overwritten
        the delta; a receipt below it would tell the client that its value is the current one.
        """
        self.duplicates.append(item)
        self.stamp = max(self.stamp, seen)

    def seen(self) -> Stamp:
        """Return the latest commit that wrote anything that this commit replaces."""
        rows = [put.seen for put in self.puts.values()]
        return max([*rows, *(put.seen for put in self.marks.values())], default=0)


def merge_part(
    part: Part,
    cached: CachedGateway,
    limits: Limits,
    viewer: Viewer,
    old: Stamp = 0,
) -> Outcome:
    """Merge a part's deltas into the cached rows, which are not modified.

    Args:
        part: the deltas, by shard.
        cached: what is remembered of the gateway.
        limits: what a commit may hold.
        viewer: the visibility of the pushing client.
        old: the stamp up to which a delta is old. A delta above it is a duplicate without further
            proof. The row of an old one may have been deleted since, and the deletion forgotten.
    """
    outcome = Outcome()
    config, rows = cached.config, cached.rows
    appends = config.appends
    rules = WriteRules(config, viewer, limits, revives=part.revives) if config.is_judged else None
    for name, admitted in part.shards.items():
        events = [item for item in admitted if appends(item[1].table)]
        edits = [item for item in admitted if not appends(item[1].table)] if events else admitted
        if rules:
            rules.begin()
        read = next((n for n, (_, d) in enumerate(edits) if (d.table, d.row_id) not in rows), None)
        edits, unread = edits[:read], edits[read:] if read is not None else []
        effective = _merge_edits(
            edits, rows, name, outcome, limits, rules, config.tombstone_horizons, old
        )
        if unread:  # memory had no room for them
            outcome.rest[name] = [*outcome.rest.get(name, ()), *unread]
        if events:
            effective += _admit_events(events, part.since, cached.marks, name, outcome, rules)
        if effective:
            outcome.effective[name] = effective
            if rules:
                outcome.rule_rows[name] = rules.encoded(effective, outcome.rows)
    return outcome


def _merge_edits(
    edits: list[Admitted],
    remembered: Mapping[RowKey, CachedRow],
    name: str,
    outcome: Outcome,
    limits: Limits,
    rules: WriteRules | None,
    horizons: Mapping[str, Stamp],
    old: Stamp,
) -> list[Delta]:
    effective: list[Delta] = []
    rows, puts = outcome.rows, outcome.puts
    late: list[Admitted] = []  # what waits for an INSERT behind it, in case that is accepted
    for place, item in enumerate(chain(edits, late)):
        delta = item[1]
        key = (delta.table, delta.row_id)
        kept, seen = remembered[key]
        before = rows.get(key, kept)
        after = apply(before, delta)
        if after is before:
            outcome.repeat(item, seen)
            if delta.hlc <= old and delta.op is not Op.DELETE:
                outcome.unproved.add(key)
            continue
        refusal = rules.refusal(delta, before, after) if rules else None
        if isinstance(refusal, RowDeleted) and place < len(edits):
            late.append(item)
            continue
        if not refusal and may_undo_a_deletion(delta, before, horizons.get(delta.table, 0)):
            if delta.op is Op.DELETE:
                outcome.repeat(item, seen)  # it would hide nothing that exists
                continue
            refusal = RowForgotten(_FORGOTTEN)
        encoded = encode_row_state(after)
        refusal = refusal or _too_large(after, len(encoded), limits)
        if refusal:
            outcome.refuse(item, refusal, seen)
            continue
        replaced_bytes = len(puts[key].state) if key in puts else 0
        size = outcome.puts_bytes + len(encoded) - replaced_bytes
        if rows and (size > limits.commit_rows_bytes_max or (rules and rules.is_full())):
            outcome.rest[name] = sorted([*edits, *late][place:], key=lambda rest: rest[0])
            break
        if rules:
            rules.note(key, before, after)
        rows[key] = after
        puts[key] = RowPut(encoded, seen)
        outcome.puts_bytes = size
        effective.append(delta)
    return effective


def _too_large(row: RowState, size: int, limits: Limits) -> RowTooLarge | None:
    # The row may have columns that its writer is not sent, so only the limits are named.
    if len(row.columns) > COLUMNS_MAX:
        return RowTooLarge(
            f"the merged row would have more than {COLUMNS_MAX} columns; put several values into "
            "one object"
        )
    if size > limits.row_state_bytes_max:
        return RowTooLarge(
            f"the merged row would hold more than {limits.row_state_bytes_max} bytes; store the "
            "large value elsewhere and sync its key"
        )
    return None


def _admit_events(
    events: list[Admitted],
    since: Stamp,
    marks: Mapping[MarkKey, StoredMark],
    name: str,
    outcome: Outcome,
    rules: WriteRules | None,
) -> list[Delta]:
    clients = {item[1].client_id for item in events}
    gates = {client: Gate(marks[name, client].mark) for client in clients}
    by_client: dict[str, list[Delta]] = {}
    for item in events:
        delta = item[1]
        gate = gates[delta.client_id]
        refusal = rules.refusal(delta, EMPTY, state_of(delta)) if rules else None
        # An event that was accepted stays accepted, whatever the rules are when it is repeated.
        if refusal and not gate.knows(delta):
            outcome.refused.append((item, refusal))
            outcome.unproved_marks.add((name, delta.client_id))
            continue
        admission = gate.admit(delta)
        if admission is Admission.NEW:
            by_client.setdefault(delta.client_id, []).append(delta)
        elif admission is Admission.DUPLICATE:
            outcome.repeat(item, marks[name, delta.client_id].commit)
        else:
            outcome.refused.append((item, OutOfOrder(_LATE)))
    for client, deltas in by_client.items():
        before = marks[name, client]
        mark = advanced(before.mark, deltas, since)
        outcome.marks[name, client] = MarkPut(mark, before.commit)
    return [delta for deltas in by_client.values() for delta in deltas]


def lane_commit(gateway: str, cached: CachedGateway, lane: str, outcome: Outcome) -> LaneCommit:
    """Return a lane's part of a commit: its log entry, behind the head that was seen.

    Small entries stay in the head until there are several of them, and then move into the log as
    one item. This saves a write for most of them. Where there are many shards, fewer fit into a
    head.
    """
    seen = cached.head(lane)
    before = seen or NO_HEAD
    shard = lane_shard(lane)
    deltas = outcome.effective[shard]
    records = encode_records(deltas)
    entry = LogEntry(
        outcome.stamp,
        records,
        len(deltas),
        frozenset([delta.table for delta in deltas]),
        before.logged_bytes + len(records),
        before.last_logged,
        outcome.rule_rows.get(shard, b""),
    )
    entries = (*before.recent, entry)
    size = sum(len(e.records) + len(e.rule_rows) + ENTRY_OVERHEAD_BYTES for e in entries)
    room = room_bytes(gateway, lane, cached.config.layout, cached.main)
    fits = size <= RECENT_BYTES_MAX and (room is None or len(encode_chunk(entries)) <= room)
    return LaneCommit(seen, entry, () if fits else entries)
