"""What operators do to a gateway in this process: its log is trimmed, its buffer is restored."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING

from lakesync.buffer.memory_buffer import GatewayItems
from lakesync.core.clock import VISIBLE_MS_MAX
from lakesync.maintenance.horizons import Trimmer, begin_epoch
from lakesync.ports import FlushState
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.local_gateway import LocalGateway


def backed_up(local: LocalGateway) -> Callable[[], None]:
    """Take a backup of the gateway; call what is returned to restore it."""
    kept = _copied(local.buffer._gateways[GATEWAY])

    def restore() -> None:
        local.buffer._gateways[GATEWAY] = _copied(kept)
        local.buffer._places.clear()
        local.restart()
        begin_epoch(local.buffer, GATEWAY, wall_clock=local.now_ms)

    return restore


def _copied(items: GatewayItems) -> GatewayItems:
    """Copy what grows; the items themselves never change."""
    all_ = {field.name: getattr(items, field.name) for field in fields(items)}
    grown = {name: each.copy() for name, each in all_.items() if isinstance(each, dict | set)}
    logs = defaultdict(list, {lane: list(chunks) for lane, chunks in items.logs.items()})
    return GatewayItems(**all_ | grown | {"logs": logs})


def trim(local: LocalGateway, *tables: str) -> None:
    """Let the log be flushed, and let a minute pass: no commit is left in it."""
    buffer = local.buffer
    end = max(head.commit for head in buffer.heads(GATEWAY).values())
    for table in tables:
        buffer.save_flushed_table(GATEWAY, table, end)
    assert buffer.save_flush_state(GATEWAY, buffer.flush_state(GATEWAY), FlushState(end))
    later = Trimmer(buffer, wall_clock=lambda: local.now_ms() + 2 * VISIBLE_MS_MAX, keep_ms=0)
    later.trim(GATEWAY)
