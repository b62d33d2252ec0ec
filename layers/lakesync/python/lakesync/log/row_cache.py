"""A cache of configurations, heads, rows and append marks, kept in a process between requests.

Any of it may be out of date: a commit is conditional on every head, row and mark that it was
computed from. Decisions that no condition protects are read again; see `Outcome.unproved`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.layout import MAIN_LANE
from lakesync.core.merge import EMPTY, AppendMark, RowState, joined
from lakesync.ports import NO_HEAD, StoredMark
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Buffer, Commit, Head, MarkKey, RowKey, StoredRow, WallClock

BYTES_REMEMBERED_MAX: Final = 16 * 1024 * 1024
"""Row states and marks in memory, encoded, unless one atomic commit has more. As Python objects
they take about five times as much."""
READ_BYTES_MAX: Final = 5 * 1024 * 1024
"""Row states that are read for one commit, unless it is atomic; the rest waits for the next one.
Rows are dropped first, until there is room for it and for what the commit writes."""
GATEWAYS_REMEMBERED_MAX: Final = 32
"""Gateways of which one process remembers anything."""
HEAD_TRUSTED_MS: Final = 1_000
"""An older head is read again before a commit: a lost race costs more."""
_SEEN_BYTES: Final = 24
_ROW_BYTES: Final = 64

CachedRow: TypeAlias = "tuple[RowState, Stamp]"
"""A row's state, and the commit that wrote it; `EMPTY` and 0 if there is no such row yet."""
_NO_ROW: Final[CachedRow] = (EMPTY, 0)
_NO_MARK: Final = StoredMark(AppendMark(), 0)


class CachedHead(NamedTuple):
    """A lane's head, or None if it has none, and when it was read."""

    head: Head | None
    read_ms: int


@dataclass(slots=True)
class CachedGateway:
    """What is remembered of one gateway."""

    config: GatewayConfig
    lanes: dict[str, str] = field(default_factory=dict)
    """By shard, the lane that this process writes to."""
    opened: dict[str, Stamp] = field(default_factory=dict)
    """Closed lanes that this process listed as open, each with its head's commit before that."""
    heads: dict[str, CachedHead] = field(default_factory=dict)
    """By lane."""
    rows: dict[RowKey, CachedRow] = field(default_factory=dict)
    marks: dict[MarkKey, StoredMark] = field(default_factory=dict)
    asked_at_bytes: dict[str, int] = field(default_factory=dict)
    """By lane, its running total when a flush was last requested."""

    def head(self, lane: str) -> Head | None:
        """Return the cached head of a lane."""
        return self.heads[lane].head

    @property
    def main(self) -> Head:
        """The main lane's cached head."""
        return self.heads[MAIN_LANE].head or NO_HEAD


class RowCache:
    """Remembers gateways; the most recently used stay. One request at a time."""

    def __init__(self, buffer: Buffer, wall_clock: WallClock) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._gateways: OrderedDict[str, CachedGateway] = OrderedDict()
        self._bytes = 0

    def make_room(self) -> None:
        """Drop everything if memory is full; between two requests, never inside one."""
        if self._bytes > BYTES_REMEMBERED_MAX:
            self._gateways.clear()
            self._bytes = 0

    def gateway(self, gateway: str) -> CachedGateway:
        """Return the cached state of a gateway, reading its configuration the first time."""
        cached = self._gateways.get(gateway)
        if cached is None:
            cached = self._gateways[gateway] = CachedGateway(self._buffer.config(gateway))
            if len(self._gateways) > GATEWAYS_REMEMBERED_MAX:
                self._gateways.popitem(last=False)
        self._gateways.move_to_end(gateway)
        return cached

    def is_current(self, gateway: str) -> bool:
        """Return whether the cached configuration is in force; one read unit."""
        version = self.gateway(gateway).config.version
        main = self._buffer.lane_heads(gateway, [MAIN_LANE]).get(MAIN_LANE)
        return main is None or main.config_version == version

    def forget(self, gateway: str) -> None:
        """Drop a gateway: its configuration changed."""
        self._gateways.pop(gateway, None)

    # --- heads

    def load_heads(self, gateway: str, lanes: Iterable[str]) -> CachedGateway:
        """Read heads of lanes that are not cached, or were read too long ago."""
        cached = self.gateway(gateway)
        old_ms = self._wall_clock() - HEAD_TRUSTED_MS
        missing = [
            lane
            for lane in dict.fromkeys(lanes)
            if lane not in cached.heads or cached.heads[lane].read_ms < old_ms
        ]
        if missing:
            heads = self._buffer.lane_heads(gateway, missing)
            self.save_heads(gateway, {lane: heads.get(lane) for lane in missing})
        return cached

    def save_heads(self, gateway: str, heads: Mapping[str, Head | None]) -> list[str]:
        """Cache heads that were just read.

        Returns:
            The lanes in which a commit happened shortly after they were last read.
        """
        cached, now_ms = self.gateway(gateway), self._wall_clock()
        raced = []
        for lane, head in heads.items():
            before = cached.heads.get(lane)
            cached.heads[lane] = CachedHead(head, now_ms)
            if before is not None and _logged(before.head) != _logged(head):
                # Others write to this gateway, so its cached rows are probably out of date.
                cached.rows.clear()
                if now_ms - before.read_ms < HEAD_TRUSTED_MS:
                    raced.append(lane)
        return raced

    def forget_heads(self, gateway: str, lanes: Iterable[str]) -> None:
        """Drop heads, to read them again."""
        for lane in lanes:
            self.gateway(gateway).heads.pop(lane, None)

    # --- rows and marks

    def load_rows(self, gateway: str, wanted: Iterable[RowKey], *, whole: bool) -> set[RowKey]:
        """Read the states of rows that are not cached, in as few requests as possible.

        Args:
            gateway: the gateway's id.
            wanted: the rows.
            whole: all of them, however large; else those that fit into memory, in order.

        Returns:
            The rows that were read.
        """
        if self._bytes > BYTES_REMEMBERED_MAX // 2:
            self._forget_all_rows()
        rows = self.gateway(gateway).rows
        missing = dict.fromkeys(key for key in wanted if key not in rows)
        if not missing:
            return set()
        most = sys.maxsize if whole else READ_BYTES_MAX
        read, unread = self._buffer.rows_within(gateway, missing, most)
        for key in unread:
            del missing[key]
        for key in missing:
            self._save_row(rows, key, read.get(key))
        return set(missing)

    def save_rows(self, gateway: str, rows: Mapping[RowKey, StoredRow | None]) -> None:
        """Cache rows that were just read."""
        for key, stored in rows.items():
            self._save_row(self.gateway(gateway).rows, key, stored)

    def _save_row(
        self, rows: dict[RowKey, CachedRow], key: RowKey, stored: StoredRow | None
    ) -> None:
        rows[key] = (decode_row_state(stored.state), stored.commit) if stored else _NO_ROW
        self._bytes += _ROW_BYTES + (len(stored.state) if stored else 0)

    def forget_rows(self, gateway: str, rows: Iterable[RowKey], marks: Iterable[MarkKey]) -> None:
        """Drop rows and marks, to read them again."""
        cached = self.gateway(gateway)
        for key in rows:
            cached.rows.pop(key, None)
        for mark in marks:
            cached.marks.pop(mark, None)

    def _forget_all_rows(self) -> None:
        """Drop all rows: any may be read again. Marks stay, as one push reads them only once."""
        for cached in self._gateways.values():
            cached.rows.clear()
        marks = [mark for cached in self._gateways.values() for mark in cached.marks.values()]
        self._bytes = sum(_SEEN_BYTES * len(stored.mark.recent) + _ROW_BYTES for stored in marks)

    def load_marks(self, gateway: str, wanted: Iterable[MarkKey]) -> set[MarkKey]:
        """Read the append marks that are not cached, all in one request; returns those.

        A mark older than the last move of a table may lack what the table accepted in another
        shard. Then the client's marks of all shards are joined.
        """
        cached = self.gateway(gateway)
        missing = {key for key in wanted if key not in cached.marks}
        if not missing:
            return missing
        read = self._buffer.marks(gateway, missing)
        layout = cached.config.layout
        behind = {key for key in missing if read.get(key, _NO_MARK).mark.moves < layout.moves}
        clients = {client for _, client in behind}
        # The following commit does not write to those, so its conditions do not cover them.
        everywhere = [(shard, client) for shard in layout.shards() for client in clients]
        others = self._buffer.read_marks_serializable(gateway, everywhere)
        for key in missing:
            stored = read.get(key, _NO_MARK)
            if key in behind:
                known = [other.mark for (_, whose), other in others.items() if whose == key[1]]
                stored = StoredMark(joined(known, layout.moves), stored.commit)
            cached.marks[key] = stored
            self._bytes += _SEEN_BYTES * len(stored.mark.recent) + _ROW_BYTES
        return missing

    def committed(
        self, commit: Commit, heads: Mapping[str, Head], rows: Mapping[RowKey, RowState]
    ) -> None:
        """Cache heads, rows and marks that were just committed."""
        cached, now_ms = self.gateway(commit.gateway), self._wall_clock()
        for lane, head in heads.items():
            cached.heads[lane] = CachedHead(head, now_ms)
        for key, state in rows.items():
            cached.rows[key] = (state, commit.stamp)
        self._bytes += sum(len(put.state) for put in commit.rows.values())
        for mark, put in commit.marks.items():
            cached.marks[mark] = StoredMark(put.mark, commit.stamp)
            self._bytes += _SEEN_BYTES * len(put.mark.recent)


def _logged(head: Head | None) -> Stamp:
    return head.last_logged if head else 0
