"""The metrics of a gateway's buffer, for the tables that the caller may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE, lane_shard
from lakesync.core.visibility import Viewer
from lakesync.log.head_checks import unflushed_bytes
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.token_claims import Claims
    from lakesync.ports import Buffer


def metrics(buffer: Buffer, gateway: str, claims: Claims | None, now_ms: int) -> dict[str, object]:
    """Return how much is unflushed, since when, and how far the log is, in total and by shard.

    A client (``claims``) gets the tables that the rules can show it, and their shards. Names and
    activity of other tables are hidden from it.
    """
    config = buffer.config(gateway)
    tables, shards = _shown(config, claims)
    every = buffer.heads(gateway)
    heads = {lane: head for lane, head in every.items() if lane_shard(lane) in shards}
    state = buffer.flush_state(gateway)
    oldest = [head.oldest_unflushed for head in heads.values() if head.oldest_unflushed]
    age_ms = now_ms - stamp_ms(min(oldest)) if oldest else 0
    return {
        "gateway": gateway,
        "configVersion": config.version,
        "tables": sorted(tables),
        "headHlc": str(max((head.commit for head in heads.values()), default=0)),
        "flushedHlc": str(state.watermark),
        "unflushedBytes": sum(unflushed_bytes(head) for head in heads.values()),
        "unflushedAgeMs": max(age_ms, 0),
        "lanes": len((every.get(MAIN_LANE) or NO_HEAD).lanes.open()),
        "shards": {
            shard: {
                "headHlc": str(max(head.commit for head in of_shard)),
                "unflushedBytes": sum(map(unflushed_bytes, of_shard)),
            }
            for shard in sorted(shards)
            if (of_shard := [h for lane, h in heads.items() if lane_shard(lane) == shard])
        },
    }


def _shown(config: GatewayConfig, claims: Claims | None) -> tuple[list[str], Sequence[str]]:
    viewer = Viewer(config.rules, claims or {})
    if claims is None or viewer.sees_everything:
        return list(config.schemas), config.layout.shards()
    named = {shard for table, shard in config.layout.tables.items() if viewer.may_see(table)}
    return [table for table in config.schemas if viewer.may_see(table)], [DEFAULT_SHARD, *named]
