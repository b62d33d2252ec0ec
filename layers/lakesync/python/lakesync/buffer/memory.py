"""The buffer in memory: the reference implementation, and the one that simulations run on.

It keeps the same conditions and the same limits as the DynamoDB one, under one lock.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lakesync.buffer import pack
from lakesync.buffer.keys import check_gateway
from lakesync.core.config import GatewayConfig
from lakesync.errors import Conflict, InternalError
from lakesync.ports import (
    NO_HEAD,
    FlushState,
    Head,
    HeadMoved,
    LogEntry,
    LogSlice,
    StaleRead,
    StoredMark,
    StoredRow,
    head_after,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, MarkKey, RowKey

ITEMS_MAX: Final = 100
"""Items of one commit, as DynamoDB has it: here too, so that tests in memory meet it."""
ITEM_BYTES_MAX: Final = 400 * 1024
"""One item, as DynamoDB has it."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""All items of one commit, as DynamoDB has it."""
_PAGE_BYTES_MAX: Final = 1024 * 1024


@dataclass(slots=True)
class _Gateway:
    heads: dict[str, Head] = field(default_factory=dict)
    logs: dict[str, list[LogEntry]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[RowKey, StoredRow] = field(default_factory=dict)
    marks: dict[MarkKey, StoredMark] = field(default_factory=dict)
    config: GatewayConfig = field(default_factory=GatewayConfig)
    flush: FlushState = field(default_factory=FlushState)
    tokens: set[str] = field(default_factory=set)


class MemoryBuffer:
    """`lakesync.ports.Buffer` in one process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateways: dict[str, _Gateway] = defaultdict(_Gateway)

    def heads(self, gateway: str, shards: Sequence[str]) -> dict[str, Head]:
        """Give the heads that exist, by shard."""
        with self._lock:
            held = self._of(gateway).heads
            return {shard: held[shard] for shard in shards if shard in held}

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Give the states of the rows that exist."""
        with self._lock:
            held = self._of(gateway).rows
            return {key: held[key] for key in wanted if key in held}

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Give the append marks that exist."""
        with self._lock:
            held = self._of(gateway).marks
            return {key: held[key] for key in wanted if key in held}

    def commit(self, commit: Commit) -> None:
        """Write everything, or nothing; see `lakesync.ports.Buffer.commit`."""
        _check_size(commit)
        with self._lock:
            held = self._of(commit.gateway)
            if commit.token in held.tokens:
                return
            _check_heads(held, commit)
            _check_states(held, commit)
            for shard, part in commit.shards.items():
                held.heads[shard] = head_after(held.heads.get(shard, NO_HEAD), commit, part.entry)
                held.logs[shard].append(part.entry)
                for client, put in part.marks.items():
                    held.marks[shard, client] = StoredMark(put.mark, commit.stamp)
            for key, row in commit.rows.items():
                held.rows[key] = StoredRow(row.state, commit.stamp)
            held.tokens.add(commit.token)

    def raise_head(self, gateway: str, shard: str, seen: Head | None, to: Stamp) -> bool:
        """Move an idle shard's head up; False if it was not as seen."""
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(shard)
            if _moved(head, seen):
                return False
            heads[shard] = replace(head or NO_HEAD, commit=to)
            return True

    def entries(
        self, gateway: str, shard: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Give entries in ``(after, until]`` in order, up to a bound; never by skipping."""
        with self._lock:
            log = self._of(gateway).logs[shard]
            found: list[LogEntry] = []
            count = size = 0
            for place in range(bisect_right(log, after, key=lambda entry: entry.stamp), len(log)):
                entry = log[place]
                if entry.stamp > until:
                    break
                if count >= count_max or size >= _PAGE_BYTES_MAX:
                    return LogSlice(tuple(found), found[-1].stamp)
                found.append(entry)
                count += entry.count
                size += len(entry.records)
            return LogSlice(tuple(found), until)

    def config(self, gateway: str) -> GatewayConfig:
        """Give the configuration in force."""
        with self._lock:
            return self._of(gateway).config

    def save_config(self, gateway: str, config: GatewayConfig, to: Stamp) -> None:
        """Put a configuration in force; see `lakesync.ports.Buffer.save_config`."""
        pack.pack_config(config)
        with self._lock:
            held = self._of(gateway)
            if held.config.version != config.version - 1:
                raise Conflict("the configuration changed meanwhile; read it and try again")
            heads = {shard: held.heads.get(shard, NO_HEAD) for shard in config.layout.shards()}
            moved = {shard: head for shard, head in heads.items() if head.commit > to}
            if moved:
                raise HeadMoved(moved)
            for shard, head in heads.items():
                held.heads[shard] = replace(head, commit=to, config_version=config.version)
            held.config = config

    def gateways(self) -> list[str]:
        """Give every gateway that was ever written to."""
        with self._lock:
            return sorted(name for name, held in self._gateways.items() if held.heads)

    def flush_state(self, gateway: str) -> FlushState:
        """Give how far the gateway was flushed."""
        with self._lock:
            return self._of(gateway).flush

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Move the flush state on; False if it was not as seen."""
        with self._lock:
            held = self._of(gateway)
            if (held.flush.watermark, held.flush.until) != (seen.watermark, seen.until):
                return False
            held.flush = state
            return True

    def note_flushed(self, gateway: str, shard: str, until: Stamp, logged_bytes: int) -> None:
        """Set how much of a shard is flushed; never lowers it."""
        with self._lock:
            heads = self._of(gateway).heads
            head = heads.get(shard)
            if head is not None and logged_bytes >= head.flushed_bytes:
                oldest = 0 if logged_bytes == head.logged_bytes else until
                heads[shard] = replace(head, flushed_bytes=logged_bytes, oldest_unflushed=oldest)

    def _of(self, gateway: str) -> _Gateway:
        return self._gateways[check_gateway(gateway)]


def _moved(head: Head | None, seen: Head | None) -> bool:
    return (head and head.commit) != (seen and seen.commit)


def _check_heads(held: _Gateway, commit: Commit) -> None:
    moved: dict[str, Head] = {}
    for shard, part in commit.shards.items():
        head = held.heads.get(shard)
        reconfigured = head is not None and head.config_version != commit.config_version
        if reconfigured or _moved(head, part.seen):
            moved[shard] = head or NO_HEAD
    if moved:
        raise HeadMoved(moved)


def _check_states(held: _Gateway, commit: Commit) -> None:
    stale = [key for key, row in commit.rows.items() if _commit_of(held.rows.get(key)) != row.seen]
    stale += [
        (shard, client)
        for shard, part in commit.shards.items()
        for client, put in part.marks.items()
        if _commit_of(held.marks.get((shard, client))) != put.seen
    ]
    if stale:
        raise StaleRead(f"{len(stale)} rows or marks are not as they were seen")


def _commit_of(stored: StoredRow | StoredMark | None) -> Stamp:
    return stored.commit if stored else 0


def _check_size(commit: Commit) -> None:
    """Refuse what DynamoDB would refuse: the gateway must have cut it before."""
    sizes = [len(pack.deflate(part.entry.records)) for part in commit.shards.values()]
    sizes += [len(row.state) for row in commit.rows.values()]
    sizes += [
        len(pack.pack_mark(put.mark))
        for part in commit.shards.values()
        for put in part.marks.values()
    ]
    items = len(sizes) + len(commit.shards)
    if items > ITEMS_MAX or max(sizes) > ITEM_BYTES_MAX or sum(sizes) > COMMIT_BYTES_MAX:
        raise InternalError(f"a commit of {items} items, {sum(sizes)} bytes does not fit")
