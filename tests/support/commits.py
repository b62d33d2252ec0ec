"""Commits by hand, for tests of the buffer itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from lakesync.ports import NO_HEAD, Commit, LaneCommit, LogEntry, MarkPut, RowPut

if TYPE_CHECKING:
    from lakesync.buffer.memory_buffer import MemoryBuffer
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import AppendMark
    from lakesync.ports import Buffer, Head, MarkKey, RowKey

RECORDS = b"a run of deltas, which the buffer never looks into"


@dataclass
class Writer:
    """Writes a gateway's commits one after the other, as whoever reads its heads would."""

    buffer: Buffer
    gateway: str
    config_version: int = 0
    stamp: Stamp = 1_000
    written: dict[RowKey, Stamp] = field(default_factory=dict)

    def head(self, lane: str) -> Head | None:
        return self.buffer.lane_heads(self.gateway, [lane]).get(lane)

    def prepare(
        self,
        *lanes: str,
        at: Stamp | None = None,
        records: bytes = RECORDS,
        count: int = 1,
        rows: dict[RowKey, bytes] | None = None,
        marks: dict[str, AppendMark] | None = None,
        in_head: bool = False,
    ) -> Commit:
        """Make a commit that would happen now; its entries go into the log, or stay in the heads.

        Append marks are those of the shards that the lanes are of.
        """
        self.stamp = at if at is not None else self.stamp + 10
        parts = {}
        puts: dict[MarkKey, MarkPut] = {}
        for lane in lanes or ("main",):
            seen = self.head(lane)
            before = seen or NO_HEAD
            logged = before.logged_bytes + len(records)
            entry = LogEntry(
                self.stamp, records, count, frozenset({"todos"}), logged, before.last_logged
            )
            parts[lane] = LaneCommit(seen, entry, () if in_head else (*before.recent, entry))
            shard = lane.partition(".")[0]
            stored_marks = self.buffer.marks(self.gateway, [(shard, name) for name in marks or {}])
            puts |= {
                (shard, client): MarkPut(
                    mark, stored_marks[shard, client].commit if stored_marks else 0
                )
                for client, mark in (marks or {}).items()
            }
        stored = self.buffer.rows(self.gateway, rows or {})
        states = {
            key: RowPut(state, stored[key].commit if key in stored else 0)
            for key, state in (rows or {}).items()
        }
        token = uuid4().hex
        return Commit(self.gateway, self.stamp, self.config_version, parts, states, token, puts)

    def write(self, *lanes: str, **wanted: object) -> Commit:
        commit = self.prepare(*lanes, **wanted)  # type: ignore[arg-type]
        self.buffer.commit(commit)
        return commit


def renamed(commit: Commit) -> Commit:
    """Return the same commit as somebody else's try."""
    return replace(commit, token=uuid4().hex)


def logged(buffer: MemoryBuffer, gateway: str) -> dict[str, list[LogEntry]]:
    items = buffer._gateways[gateway]
    return {
        lane: [entry for chunk in items.logs[lane] for entry in chunk] + [*head.recent]
        for lane, head in items.heads.items()
    }
