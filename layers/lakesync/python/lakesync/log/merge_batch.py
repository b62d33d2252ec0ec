"""What a part of a push does to the rows it touches: pure, and repeated after each lost race."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakesync.core.append import Admission, Gate, advanced
from lakesync.core.delta import COLUMNS_MAX, Op
from lakesync.core.forgetting import may_undo_a_deletion
from lakesync.core.merge import EMPTY, apply, state_of
from lakesync.errors import Forbidden, LakeSyncError, OutOfOrder, RowForgotten, RowTooLarge
from lakesync.log.write_rules import WriteRules
from lakesync.ports import NO_HEAD, LogEntry, MarkPut, RowPut, ShardCommit
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.append import AppendMark
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.visibility import Viewer
    from lakesync.log.limits import Limits
    from lakesync.log.plan import Admitted, Part
    from lakesync.log.row_cache import CachedShard
    from lakesync.ports import RowKey

_NOT_YOURS = "the sync rules do not let you change this row, as it was or as it would be"
_FORGOTTEN = (
    "the edit is older than this gateway remembers deletions, and its row may have been deleted; "
    "sync, and make the edit again if it is still wanted"
)
_LATE = "an append delta must be newer than its client's last accepted one; stamp it again and push"


@dataclass(slots=True)
class Outcome:
    """What becomes of a part: deltas that count, rows as they will be, the rest with reasons."""

    effective: dict[str, list[Delta]] = field(default_factory=dict)
    """By shard, the deltas that change at least one register, in their order."""
    rows: dict[RowKey, RowState] = field(default_factory=dict)
    puts: dict[RowKey, RowPut] = field(default_factory=dict)
    """The same rows, encoded."""
    puts_bytes: int = 0
    marks: dict[str, dict[str, AppendMark]] = field(default_factory=dict)
    """By shard and client, the append marks as they will be."""
    duplicates: list[Admitted] = field(default_factory=list)
    refused: list[tuple[Admitted, LakeSyncError]] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)
    """The shards of those."""
    rest: dict[str, list[Admitted]] = field(default_factory=dict)
    """By shard, what would not fit the same commit, because the rows it touches are large."""
    rule_rows: dict[str, bytes] = field(default_factory=dict)
    """By shard, what sync rules look at; see `lakesync.wire.rule_rows`."""
    has_old_duplicates: bool = False
    """An old write is a duplicate by its row as it is remembered; that may be gone by now."""
    stamp: Stamp = 0
    """The commit's stamp; if nothing had to be committed, the latest commit that is known."""

    def must_reread(self, *, atomic: bool) -> bool:
        """Tell whether it was decided by what is remembered, and no commit will prove that right.

        A duplicate is one while its client is sure to be told of all that came after it. What is
        old may have been deleted since, and the deletion be forgotten. A refusal is proved by a
        commit to its own shard only.
        """
        commits = not (atomic and self.refused)
        unproved = self.refusing - self.effective.keys() if commits else self.refusing
        return self.has_old_duplicates or bool(unproved)


def merge_part(
    part: Part,
    shards: Mapping[str, CachedShard],
    config: GatewayConfig,
    limits: Limits,
    viewer: Viewer,
    old: Stamp = 0,
) -> Outcome:
    """Merge a part's deltas into the remembered rows, which stay as they are.

    Args:
        part: the deltas, by shard.
        shards: what is remembered of their shards.
        config: the gateway's.
        limits: what a commit may hold.
        viewer: whose push it is.
        old: the stamp up to which a delta is old; see `Outcome.has_old_duplicates`.
    """
    outcome = Outcome()
    appends = config.appends
    rules = WriteRules(config.rules, config.logged, viewer, limits) if config.is_judged else None
    for name, admitted in part.shards.items():
        refused = len(outcome.refused)
        events = [item for item in admitted if appends(item[1].table)]
        edits = [item for item in admitted if not appends(item[1].table)] if events else admitted
        if rules:
            rules.begin()
        rows = shards[name].rows
        read = next((n for n, (_, d) in enumerate(edits) if (d.table, d.row_id) not in rows), None)
        edits, unread = edits[:read], edits[read:] if read is not None else []
        effective = _merge_edits(
            edits, shards[name], name, outcome, limits, rules, config.tombstone_horizons, old
        )
        if unread:  # memory had no room for them
            outcome.rest[name] = [*outcome.rest.get(name, ()), *unread]
        if events:
            effective += _admit_events(events, part.since, shards[name], name, outcome, rules)
        if len(outcome.refused) > refused:
            outcome.refusing.add(name)
        if effective:
            outcome.effective[name] = effective
            if rules:
                outcome.rule_rows[name] = rules.encoded(effective, outcome.rows)
    return outcome


def _merge_edits(
    edits: list[Admitted],
    shard: CachedShard,
    name: str,
    outcome: Outcome,
    limits: Limits,
    rules: WriteRules | None,
    horizons: Mapping[str, Stamp],
    old: Stamp,
) -> list[Delta]:
    effective: list[Delta] = []
    rows, puts, remembered = outcome.rows, outcome.puts, shard.rows
    for place, item in enumerate(edits):
        delta = item[1]
        key = (delta.table, delta.row_id)
        kept, seen = remembered[key]
        before = rows.get(key, kept)
        after = apply(before, delta)
        if after is before:
            outcome.duplicates.append(item)
            outcome.has_old_duplicates |= delta.hlc <= old and delta.op is not Op.DELETE
            continue
        if rules and not rules.may_write(key, before, after):
            outcome.refused.append((item, Forbidden(_NOT_YOURS)))
            continue
        if horizons and may_undo_a_deletion(delta, before, horizons.get(delta.table, 0)):
            if delta.op is Op.DELETE:
                outcome.duplicates.append(item)  # it would hide nothing that is there
            else:
                outcome.refused.append((item, RowForgotten(_FORGOTTEN)))
            continue
        encoded = encode_row_state(after)
        if len(encoded) > limits.row_state_bytes_max or len(after.columns) > COLUMNS_MAX:
            outcome.refused.append((item, _too_large(after, len(encoded), limits)))
            continue
        size = outcome.puts_bytes + len(encoded)
        if key in puts:
            size -= len(puts[key].state)
        if rows and (size > limits.commit_rows_bytes_max or (rules and rules.is_full())):
            outcome.rest[name] = edits[place:]
            break
        if rules:
            rules.note(key, before, after)
        rows[key] = after
        puts[key] = RowPut(encoded, seen)
        outcome.puts_bytes = size
        effective.append(delta)
    return effective


def _too_large(row: RowState, size: int, limits: Limits) -> RowTooLarge:
    if len(row.columns) > COLUMNS_MAX:
        return RowTooLarge(
            f"the merged row would have {len(row.columns)} columns; at most {COLUMNS_MAX} can be "
            "sent: put several values into one object"
        )
    return RowTooLarge(
        f"the merged row would hold {size} bytes; at most {limits.row_state_bytes_max} fit: store "
        "the large value elsewhere and sync its key"
    )


def _admit_events(
    events: list[Admitted],
    since: Stamp,
    shard: CachedShard,
    name: str,
    outcome: Outcome,
    rules: WriteRules | None,
) -> list[Delta]:
    clients = {item[1].client_id for item in events}
    gates = {client: Gate(shard.marks[client].mark) for client in clients}
    by_client: dict[str, list[Delta]] = {}
    for item in events:
        delta = item[1]
        gate = gates[delta.client_id]
        may_write = not rules or rules.may_write(
            (delta.table, delta.row_id), EMPTY, state_of(delta)
        )
        # What was taken stays so, whatever rules say by the time it comes again.
        if not may_write and not gate.knows(delta):
            outcome.refused.append((item, Forbidden(_NOT_YOURS)))
            continue
        admission = gate.admit(delta)
        if admission is Admission.NEW:
            by_client.setdefault(delta.client_id, []).append(delta)
        elif admission is Admission.DUPLICATE:
            outcome.duplicates.append(item)
        else:
            outcome.refused.append((item, OutOfOrder(_LATE)))
    if by_client:
        outcome.marks[name] = {
            client: advanced(shard.marks[client].mark, deltas, since)
            for client, deltas in by_client.items()
        }
    return [delta for deltas in by_client.values() for delta in deltas]


def shard_commit(stamp: Stamp, shard: CachedShard, name: str, outcome: Outcome) -> ShardCommit:
    """Give one shard's part of a commit: its log entry, behind the head that was seen."""
    before = shard.head or NO_HEAD
    deltas, marks = outcome.effective[name], outcome.marks.get(name, {})
    records = encode_records(deltas)
    logged_bytes = before.logged_bytes + len(records)
    tables = frozenset([delta.table for delta in deltas])
    rule_rows = outcome.rule_rows.get(name, b"")
    entry = LogEntry(
        stamp, records, len(deltas), tables, logged_bytes, before.last_logged, rule_rows
    )
    puts = {client: MarkPut(mark, shard.marks[client].commit) for client, mark in marks.items()}
    return ShardCommit(shard.head, entry, puts)
