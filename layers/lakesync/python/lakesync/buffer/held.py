"""What the buffer in memory holds of one gateway."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakesync.core.config import GatewayConfig
from lakesync.ports import FlushState

if TYPE_CHECKING:
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
class HeldGateway:
    """Its items, of each kind by key."""

    heads: dict[str, Head] = field(default_factory=dict)
    logs: dict[str, list[LogEntry]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[RowKey, StoredRow] = field(default_factory=dict)
    marks: dict[MarkKey, StoredMark] = field(default_factory=dict)
    config: GatewayConfig = field(default_factory=GatewayConfig)
    flush: FlushState = field(default_factory=FlushState)
    flushed: dict[str, Stamp] = field(default_factory=dict)
    clients: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    """Of the commits that happened."""
