"""The effect of a part of a push on the rows it touches: pure, repeated after each lost race."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from lakesync.core.append import Admission, Gate, advanced
from lakesync.core.delta import COLUMNS_MAX, Op
from lakesync.core.forgetting import may_undo_a_deletion
from lakesync.core.layout import lane_shard
from lakesync.core.merge import EMPTY, apply, state_of
from lakesync.errors import OutOfOrder, RowDeleted, RowForgotten, RowTooLarge
from lakesync.log.head_room import room_bytes
from lakesync.log.write_rules import WriteRules
from lakesync.ports import NO_HEAD, LaneCommit, LogEntry, MarkPut, RowPut
from lakesync.wire.log_chunk import encode_chunk
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.visibility import Viewer
    from lakesync.errors import LakeSyncError
    from lakesync.log.limits import Limits
    from lakesync.log.plan import Admitted, Part
    from lakesync.log.row_cache import CachedGateway, CachedRow
    from lakesync.ports import MarkKey, RowKey, StoredMark

RECENT_BYTES_MAX: Final = 1_300
"""Log entries that stay in their lane's head, before deflating. With the head they then take less
than a KB, for which a transaction costs two write units. Fewer where there are several shards."""
ENTRY_FRAME_BYTES: Final = 40
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
    """By shard, the columns that sync rules read; see `lakesync.wire.rule_rows`."""
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
    size = sum(len(e.records) + len(e.rule_rows) + ENTRY_FRAME_BYTES for e in entries)
    room = room_bytes(gateway, lane, cached.config.layout, cached.main)
    fits = size <= RECENT_BYTES_MAX and (room is None or len(encode_chunk(entries)) <= room)
    return LaneCommit(seen, entry, () if fits else entries)
