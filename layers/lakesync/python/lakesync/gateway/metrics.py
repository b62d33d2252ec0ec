"""The metrics of a gateway's buffer: for administrators, and what of them a client may know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.core.layout import MAIN_LANE, lane_shard
from lakesync.core.visibility import Viewer
from lakesync.log.head_checks import unflushed_bytes
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from lakesync.core.token_claims import Claims
    from lakesync.ports import Buffer


def metrics(buffer: Buffer, gateway: str, claims: Claims | None, now_ms: int) -> dict[str, object]:
    """Return how much is unflushed, since when, and how far the log is, in total and by shard.

    A client (``claims``) from which rules keep anything is only told what its pulls tell it: the
    tables that the rules can show it, and how far the log is. Every other number also counts what
    is hidden from it. From the bytes of the log, less those of its own pushes, it could read the
    size of each hidden commit, and rounding would not help: its pushes would find where a number
    steps.
    """
    config = buffer.config(gateway)
    viewer = Viewer(config.rules, claims or {})
    every = buffer.heads(gateway)
    head = str(max((head.commit for head in every.values()), default=0))
    if claims is not None and not viewer.sees_everything:
        tables = sorted(table for table in config.schemas if viewer.may_see(table))
        return {"gateway": gateway, "tables": tables, "headHlc": head}
    state = buffer.flush_state(gateway)
    oldest = [head.oldest_unflushed for head in every.values() if head.oldest_unflushed]
    age_ms = now_ms - stamp_ms(min(oldest)) if oldest else 0
    return {
        "gateway": gateway,
        "configVersion": config.version,
        "tables": sorted(config.schemas),
        "headHlc": head,
        "flushedHlc": str(state.watermark),
        "unflushedBytes": sum(unflushed_bytes(head) for head in every.values()),
        "unflushedAgeMs": max(age_ms, 0),
        "lanes": len((every.get(MAIN_LANE) or NO_HEAD).lanes.open()),
        "shards": {
            shard: {
                "headHlc": str(max(head.commit for head in of_shard)),
                "unflushedBytes": sum(map(unflushed_bytes, of_shard)),
            }
            for shard in sorted(config.layout.shards())
            if (of_shard := [h for lane, h in every.items() if lane_shard(lane) == shard])
        },
    }
