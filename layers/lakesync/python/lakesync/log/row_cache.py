"""A cache of configurations, heads, rows and append marks, kept in a process between requests.

All of it may be out of date, and nothing is trusted: a commit is conditional on every head, row and
mark that it was made by. What no condition proves is read again; see `Outcome.unproved`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.append import AppendMark, joined
from lakesync.core.layout import MAIN_LANE
from lakesync.core.merge import EMPTY, RowState
from lakesync.ports import NO_HEAD, StoredMark
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Buffer, Commit, Head, MarkKey, RowKey, StoredRow, WallClock

BYTES_REMEMBERED_MAX: Final = 16 * 1024 * 1024
"""Row states and marks that are in memory, encoded, unless the rows of one atomic commit are more.
In Python's form they hold about five times as much."""
READ_BYTES_MAX: Final = 5 * 1024 * 1024
"""Row states that are read for one commit, unless it is atomic; what is behind waits for the next.
Before a read rows are forgotten until there is room for it, and for what the commit writes."""
GATEWAYS_REMEMBERED_MAX: Final = 32
"""Gateways of which one process remembers anything."""
HEAD_TRUSTED_MS: Final = 1_000
"""A head that was read longer ago is read again before a commit: a lost race costs more."""
_SEEN_BYTES: Final = 24
_ROW_BYTES: Final = 64

CachedRow: TypeAlias = "tuple[RowState, Stamp]"
"""A row's state, and the commit that wrote it; `EMPTY` and 0 if there is no such row yet."""
_NO_ROW: Final[CachedRow] = (EMPTY, 0)
_NO_MARK: Final = StoredMark(AppendMark(), 0)


class CachedHead(NamedTuple):
    """A lane's head, None if it has none, and when it was as it is here."""

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
    """By lane, its running total when a flush was last asked for."""

    def head(self, lane: str) -> Head | None:
        """Give the head of a lane that was read before."""
        return self.heads[lane].head

    @property
    def main(self) -> Head:
        """The main lane's head, which was read before."""
        return self.heads[MAIN_LANE].head or NO_HEAD


class RowCache:
    """Remembers gateways, the latest used first to stay. One request at a time."""

    def __init__(self, buffer: Buffer, wall_clock: WallClock) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._gateways: OrderedDict[str, CachedGateway] = OrderedDict()
        self._bytes = 0

    def make_room(self) -> None:
        """Forget everything if memory is full; between two requests, never inside one."""
        if self._bytes > BYTES_REMEMBERED_MAX:
            self._gateways.clear()
            self._bytes = 0

    def gateway(self, gateway: str) -> CachedGateway:
        """Give what is remembered of a gateway, reading its configuration the first time."""
        cached = self._gateways.get(gateway)
        if cached is None:
            cached = self._gateways[gateway] = CachedGateway(self._buffer.config(gateway))
            if len(self._gateways) > GATEWAYS_REMEMBERED_MAX:
                self._gateways.popitem(last=False)
        self._gateways.move_to_end(gateway)
        return cached

    def is_current(self, gateway: str) -> bool:
        """Tell whether the configuration that is remembered is in force; one read unit."""
        version = self.gateway(gateway).config.version
        main = self._buffer.lane_heads(gateway, [MAIN_LANE]).get(MAIN_LANE)
        return main is None or main.config_version == version

    def forget(self, gateway: str) -> None:
        """Forget a gateway: its configuration changed."""
        self._gateways.pop(gateway, None)

    # --- heads

    def load_heads(self, gateway: str, lanes: Iterable[str]) -> CachedGateway:
        """Read heads of lanes that are not remembered, or were read too long ago."""
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
        """Remember heads as they were just read.

        Returns:
            The lanes in which a commit happened a moment after they were last read.
        """
        cached, now_ms = self.gateway(gateway), self._wall_clock()
        raced = []
        for lane, head in heads.items():
            before = cached.heads.get(lane)
            cached.heads[lane] = CachedHead(head, now_ms)
            if before is not None and _logged(before.head) != _logged(head):
                # Others write to this gateway: what is remembered of its rows is likely old.
                cached.rows.clear()
                if now_ms - before.read_ms < HEAD_TRUSTED_MS:
                    raced.append(lane)
        return raced

    def forget_heads(self, gateway: str, lanes: Iterable[str]) -> None:
        """Forget heads, to read them again."""
        for lane in lanes:
            self.gateway(gateway).heads.pop(lane, None)

    # --- rows and marks

    def load_rows(self, gateway: str, wanted: Iterable[RowKey], *, whole: bool) -> set[RowKey]:
        """Read the states of rows that are not remembered, in as few requests as may be.

        Args:
            gateway: whose.
            wanted: the rows.
            whole: all of them, however large. Else those that memory has room for, in their order.

        Returns:
            Those that were read.
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
        """Remember rows as they were just read."""
        for key, stored in rows.items():
            self._save_row(self.gateway(gateway).rows, key, stored)

    def _save_row(
        self, rows: dict[RowKey, CachedRow], key: RowKey, stored: StoredRow | None
    ) -> None:
        rows[key] = (decode_row_state(stored.state), stored.commit) if stored else _NO_ROW
        self._bytes += _ROW_BYTES + (len(stored.state) if stored else 0)

    def forget_rows(self, gateway: str, rows: Iterable[RowKey], marks: Iterable[MarkKey]) -> None:
        """Forget rows and marks, to read them again."""
        cached = self.gateway(gateway)
        for key in rows:
            cached.rows.pop(key, None)
        for mark in marks:
            cached.marks.pop(mark, None)

    def _forget_all_rows(self) -> None:
        """Forget all rows: any may be read again. Marks stay, as one push reads them but once."""
        for cached in self._gateways.values():
            cached.rows.clear()
        marks = [mark for cached in self._gateways.values() for mark in cached.marks.values()]
        self._bytes = sum(_SEEN_BYTES * len(stored.mark.recent) + _ROW_BYTES for stored in marks)

    def load_marks(self, gateway: str, wanted: Iterable[MarkKey]) -> set[MarkKey]:
        """Read the append marks that are not remembered, all in one request; gives those.

        A mark that was written before a table was last placed anew may know nothing of what that
        table took in another shard: then what all shards know of the client is joined.
        """
        cached = self.gateway(gateway)
        missing = {key for key in wanted if key not in cached.marks}
        if not missing:
            return missing
        read = self._buffer.marks(gateway, missing)
        layout = cached.config.layout
        behind = {key for key in missing if read.get(key, _NO_MARK).mark.moves < layout.moves}
        clients = {client for _, client in behind}
        # The commit that follows does not write to those, and so proves nothing of them.
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
        """Remember heads, rows and marks as they were just committed."""
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
