"""The items of the buffer in memory, and the upkeep of a whole gateway."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakesync.buffer import conditions
from lakesync.buffer.keys import check_gateway
from lakesync.core.config import GatewayConfig
from lakesync.ports import NO_HEAD, FlushState, epoch_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import (
        Head,
        LogEntry,
        MarkKey,
        RowKey,
        StoredMark,
        StoredRow,
    )


@dataclass(slots=True)
class GatewayItems:
    """The items of one gateway, of each kind by key."""

    heads: dict[str, Head] = field(default_factory=dict)
    logs: dict[str, list[LogEntry]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[RowKey, StoredRow] = field(default_factory=dict)
    marks: dict[MarkKey, StoredMark] = field(default_factory=dict)
    config: GatewayConfig = field(default_factory=GatewayConfig)
    flush: FlushState = field(default_factory=FlushState)
    flushed: dict[str, Stamp] = field(default_factory=dict)
    clients: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    """Of the commits that were written."""


class MemoryUpkeep:
    """`lakesync.ports.Upkeep` in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateways: dict[str, GatewayItems] = defaultdict(GatewayItems)
        self._places: dict[tuple[str, str], list[str]] = {}
        """By gateway and table: the sorted places of its rows. Dropped when rows come or go."""

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if it is as it was seen."""
        with self._lock:
            rows, key = self._of(gateway).rows, (table, row_id)
            if key not in rows or rows[key].commit != seen:
                return False
            del rows[key]
            self._places.pop((gateway, table), None)
            return True

    def raise_horizon(self, gateway: str, shard: str, to: Stamp) -> None:
        """Void every cursor below ``to``; never lowers a horizon."""
        with self._lock:
            heads = self._of(gateway).heads
            if shard in heads and heads[shard].trimmed < to:
                heads[shard] = replace(heads[shard], trimmed=to)

    def drop_entries(self, gateway: str, shard: str, entries_max: int) -> bool:
        """Delete entries at or below the shard's horizon; True if none is left."""
        with self._lock:
            items = self._of(gateway)
            log, trimmed = items.logs[shard], items.heads.get(shard, NO_HEAD).trimmed
            below = bisect_right(log, trimmed, key=lambda entry: entry.stamp)
            del log[: min(below, entries_max)]
            return below <= entries_max

    def begin_epoch(self, gateway: str, shards: Sequence[str], to: Stamp) -> None:
        """Put a new epoch into all heads; see `lakesync.ports.Buffer.begin_epoch`."""
        with self._lock:
            items = self._of(gateway)
            for shard, head in conditions.heads_at_most(items.heads, shards, to).items():
                items.heads[shard] = replace(head, commit=to, epoch=epoch_at(to))

    def _of(self, gateway: str) -> GatewayItems:
        return self._gateways[check_gateway(gateway)]
