"""Lanes of a gateway, opened and closed as busy and quiet times do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import STAMP_MAX
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE
from lakesync.log.lanes import close_lanes

if TYPE_CHECKING:
    from lakesync.ports import Buffer


def open_lanes(buffer: Buffer, gateway: str, count: int, shard: str = DEFAULT_SHARD) -> list[str]:
    """Open the first so many lanes of a shard; returns the names of all open lanes."""
    main = buffer.heads(gateway)[MAIN_LANE]
    lanes = main.lanes.opening(shard, count)
    assert buffer.change_lanes(gateway, main, lanes, main.commit + 1)
    return lanes.open()


def close_all_but(buffer: Buffer, gateway: str, count: int = 1, shard: str = DEFAULT_SHARD) -> None:
    """Close all lanes of a shard but the first so many."""
    assert close_lanes(buffer, gateway, buffer.heads(gateway, STAMP_MAX), {shard: count})
