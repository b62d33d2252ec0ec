"""A cache of heads, row states and append marks, kept in a process between requests.

Heads, and the states of rows and the append marks of each shard. All may be out of date, and
nothing is trusted: a commit is conditional on every head, row and mark that it was made by. When a
head moved, the shard's log between the two heads is applied to the rows that this process itself
committed, which is cheaper than reading them again; if there is too much of it, they are forgotten.

A row that was only read is never caught up. Who reads while commits become visible may see a head
and not yet the row that stands under it: such a row lacks a delta from before the head, and a later
delta applied to it would give it the stamp of a row that has both. A commit that was conditional on
the row is what proves it; until then the row stays as it was read, or is read again.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.core.append import AppendMark, joined
from lakesync.core.merge import EMPTY, RowState, apply
from lakesync.errors import Unavailable
from lakesync.log.read_barrier import is_chain
from lakesync.ports import NO_HEAD, StoredMark
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.ports import Buffer, Commit, Head, MarkKey, RowKey

BYTES_REMEMBERED_MAX: Final = 16 * 1024 * 1024
"""Row states and marks that are in memory, encoded, unless the rows of one atomic commit are more.
In Python's form they hold about five times as much."""
READ_BYTES_MAX: Final = 5 * 1024 * 1024
"""Row states that are read for one commit, unless it is atomic; what is behind waits for the next.
Before a read rows are forgotten until there is room for it, and for what the commit writes."""
GATEWAYS_REMEMBERED_MAX: Final = 32
"""Gateways of which one process remembers anything."""
CATCH_UP_DELTAS_MAX: Final = 2_000
"""Deltas read to bring remembered rows up to date; beyond, reading the rows costs less."""
_SEEN_BYTES: Final = 24
_ROW_BYTES: Final = 64

CachedRow: TypeAlias = "tuple[RowState, Stamp]"
"""A row's state, and the commit that wrote it; `EMPTY` and 0 if there is no such row yet."""
_NO_ROW: Final[CachedRow] = (EMPTY, 0)
_NO_MARK: Final = StoredMark(AppendMark(), 0)


@dataclass(slots=True)
class CachedShard:
    """One shard as it was at ``head``; None if it had no head then."""

    head: Head | None
    rows: dict[RowKey, CachedRow] = field(default_factory=dict)
    unvalidated: set[RowKey] = field(default_factory=set)
    """Of the rows, those that were read, and that no commit has been conditional on since."""
    marks: dict[str, StoredMark] = field(default_factory=dict)
    asked_at_bytes: int = 0
    """The shard's running total when a flush was last asked for."""


@dataclass(slots=True)
class CachedGateway:
    """One gateway: its configuration, and the shards that were used."""

    config: GatewayConfig
    shards: dict[str, CachedShard] = field(default_factory=dict)


class RowCache:
    """Remembers gateways, the latest used first to stay. One request at a time."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
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
        config = self.gateway(gateway).config
        shard = next(iter(config.layout.shards()))
        head = self._buffer.heads(gateway, [shard]).get(shard)
        return head is None or head.config_version == config.version

    def forget(self, gateway: str) -> None:
        """Forget a gateway: its configuration changed."""
        self._gateways.pop(gateway, None)

    def forget_shards(self, gateway: str, shards: Iterable[str]) -> None:
        """Forget some shards, because what is remembered of them is out of date."""
        for shard in shards:
            self.gateway(gateway).shards.pop(shard, None)

    def shards(self, gateway: str, wanted: Iterable[str]) -> dict[str, CachedShard]:
        """Give shards as remembered, reading the heads of those that are not."""
        cached, names = self.gateway(gateway).shards, list(wanted)
        missing = [shard for shard in names if shard not in cached]
        if missing:
            heads = self._buffer.heads(gateway, missing)
            for shard in missing:
                cached[shard] = CachedShard(heads.get(shard))
        return {shard: cached[shard] for shard in names}

    def load_rows(
        self, gateway: str, wanted: Mapping[str, Iterable[RowKey]], *, whole: bool
    ) -> None:
        """Read the states of rows that are not remembered, by shard, in as few requests as may be.

        Args:
            gateway: whose.
            wanted: the rows, by shard.
            whole: all of them, however large. Else those that memory has room for, in their order.
        """
        if self._bytes > BYTES_REMEMBERED_MAX // 2:
            self._forget_rows()
        cached = self.gateway(gateway).shards
        missing = {
            key: cached[shard]
            for shard, row_keys in wanted.items()
            for key in row_keys
            if key not in cached[shard].rows
        }
        if not missing:
            return
        most = sys.maxsize if whole else READ_BYTES_MAX
        read, unread = self._buffer.rows_within(gateway, missing, most)
        for key in unread:
            del missing[key]
        for key, shard in missing.items():
            stored = read.get(key)
            shard.rows[key] = (decode_row_state(stored.state), stored.commit) if stored else _NO_ROW
            shard.unvalidated.add(key)
        self._bytes += sum(len(stored.state) for stored in read.values())
        self._bytes += _ROW_BYTES * len(missing)

    def _forget_rows(self) -> None:
        """Forget all rows: any may be read again. Marks stay, as one push reads them but once."""
        shards = [shard for warm in self._gateways.values() for shard in warm.shards.values()]
        for shard in shards:
            shard.rows.clear()
            shard.unvalidated.clear()
        marks = [stored.mark for shard in shards for stored in shard.marks.values()]
        self._bytes = sum(_SEEN_BYTES * len(mark.recent) + _ROW_BYTES for mark in marks)

    def load_marks(self, gateway: str, wanted: Iterable[MarkKey]) -> None:
        """Read the append marks that are not remembered, all in one request.

        A mark that was written before a table was last placed anew may know nothing of what that
        table took in another shard: then what all shards know of the client is joined.
        """
        warm = self.gateway(gateway)
        missing = [key for key in wanted if key[1] not in warm.shards[key[0]].marks]
        if not missing:
            return
        read = self._buffer.marks(gateway, missing)
        moves = warm.config.layout.moves
        behind = {key for key in missing if read.get(key, _NO_MARK).mark.moves < moves}
        shards, clients = warm.config.layout.shards(), {client for _, client in behind}
        # The commit that follows does not write to those, and so proves nothing of them.
        everywhere = [(shard, client) for shard in shards for client in clients]
        others = self._buffer.read_marks_serializable(gateway, everywhere)
        for key in missing:
            shard, client = key
            stored = read.get(key, _NO_MARK)
            if key in behind:
                known = [other.mark for (_, whose), other in others.items() if whose == client]
                stored = StoredMark(joined(known, moves), stored.commit)
            warm.shards[shard].marks[client] = stored
            self._bytes += _SEEN_BYTES * len(stored.mark.recent) + _ROW_BYTES

    def committed(self, commit: Commit, rows: Mapping[RowKey, RowState]) -> None:
        """Remember rows and marks as they were just committed."""
        warm = self.gateway(commit.gateway)
        shard_of, stamp = warm.config.layout.shard_of, commit.stamp
        for key, state in rows.items():
            shard = warm.shards[shard_of(*key)]
            shard.rows[key] = (state, stamp)
            shard.unvalidated.discard(key)
        self._bytes += sum(len(put.state) for put in commit.rows.values())
        for name, part in commit.shards.items():
            for client, put in part.marks.items():
                warm.shards[name].marks[client] = StoredMark(put.mark, stamp)
                self._bytes += _SEEN_BYTES * len(put.mark.recent)

    def moved(self, gateway: str, heads: Mapping[str, Head]) -> None:
        """Bring shards whose heads moved up to date, or forget what was remembered of them."""
        cached = self.gateway(gateway).shards
        for shard, head in heads.items():
            before = cached.pop(shard, None)
            if head == NO_HEAD:
                continue
            now = cached[shard] = CachedShard(head)
            if before is not None:
                now.asked_at_bytes = before.asked_at_bytes
                if self._catch_up(gateway, shard, before, head):
                    now.rows, now.unvalidated = before.rows, before.unvalidated

    def _catch_up(self, gateway: str, shard: str, before: CachedShard, head: Head) -> bool:
        """Apply to a shard's rows what was logged up to a head; tells whether that was possible."""
        cached = before.head or NO_HEAD
        if not before.rows or head.epoch != cached.epoch or head.commit < cached.commit:
            return False
        try:
            news = self._buffer.entries(
                gateway, shard, cached.commit, head.commit, CATCH_UP_DELTAS_MAX
            )
        except Unavailable:
            return False  # reading them again is then the caller's to try
        if news.until < head.commit or not is_chain(news, cached.commit, head.last_logged):
            return False  # too much, or an entry is not visible yet and a later one of its row is
        for entry in news.entries:
            for delta in decode_records(entry.records):
                _apply_logged(before, delta, entry.stamp)
        return True


def _apply_logged(shard: CachedShard, delta: Delta, stamp: Stamp) -> None:
    """Apply one logged delta to a remembered row, or forget the row if nothing proves it whole."""
    key = (delta.table, delta.row_id)
    row = shard.rows.get(key)
    if row is None:
        return
    if key in shard.unvalidated:
        shard.unvalidated.remove(key)
        del shard.rows[key]
    else:
        shard.rows[key] = (apply(row[0], delta), max(row[1], stamp))
