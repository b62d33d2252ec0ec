"""Commits by hand, for tests of the buffer itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from lakesync.ports import NO_HEAD, Commit, LogEntry, MarkPut, RowPut, ShardCommit

if TYPE_CHECKING:
    from lakesync.core.append import AppendMark
    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, Head, RowKey

RECORDS = b"a run of deltas, which the buffer never looks into"


@dataclass
class Writer:
    """Writes a gateway's commits one after the other, as whoever reads its heads would."""

    buffer: Buffer
    gateway: str
    config_version: int = 0
    stamp: Stamp = 1_000
    written: dict[RowKey, Stamp] = field(default_factory=dict)

    def head(self, shard: str) -> Head | None:
        """Give a shard's head as it is now."""
        return self.buffer.heads(self.gateway, [shard]).get(shard)

    def prepare(
        self,
        *shards: str,
        at: Stamp | None = None,
        records: bytes = RECORDS,
        count: int = 1,
        rows: dict[RowKey, bytes] | None = None,
        marks: dict[str, AppendMark] | None = None,
    ) -> Commit:
        """Make a commit that would happen now."""
        self.stamp = at if at is not None else self.stamp + 10
        parts = {}
        for shard in shards or ("main",):
            seen = self.head(shard)
            before = seen or NO_HEAD
            logged = before.logged_bytes + len(records)
            entry = LogEntry(
                self.stamp, records, count, frozenset({"todos"}), logged, before.last_logged
            )
            found = self.buffer.marks(self.gateway, [(shard, client) for client in marks or {}])
            puts = {
                client: MarkPut(mark, found[shard, client].commit if found else 0)
                for client, mark in (marks or {}).items()
            }
            parts[shard] = ShardCommit(seen, entry, puts)
        stored = self.buffer.rows(self.gateway, rows or {})
        states = {
            key: RowPut(state, stored[key].commit if key in stored else 0)
            for key, state in (rows or {}).items()
        }
        token = uuid4().hex
        return Commit(self.gateway, self.stamp, self.config_version, parts, states, token)

    def write(self, *shards: str, **wanted: object) -> Commit:
        """Make a commit happen."""
        commit = self.prepare(*shards, **wanted)  # type: ignore[arg-type]
        self.buffer.commit(commit)
        return commit


def renamed(commit: Commit) -> Commit:
    """Give the same commit as somebody else's try."""
    return replace(commit, token=uuid4().hex)
