"""Faults in checkpoints: how they are built, served, and what goes behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.checkpoint.store import Checkpoints, TableChunks, checkpoint_id, put_manifest
from lakesync.gateway.filtered_reads import Records, RuleFilter
from lakesync.maintenance import checkpoint_upkeep
from lakesync.maintenance.checkpoint_upkeep import Builder, Keeper
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import CHECKPOINTS, RULES

if TYPE_CHECKING:
    from lakesync.checkpoint.store import Manifest
    from lakesync.core.clock import Stamp
    from lakesync.maintenance.checkpoint_upkeep import Progress
    from lakesync.ports import FlushState, ObjectStore
    from lakesync.wire.records import RowRun

BOTH = RULES | CHECKPOINTS
"""Checkpoints under rules."""


@deliberate("a checkpoint is served unfiltered", BOTH)
def checkpoint_unfiltered() -> list[Replaced]:
    def row_run(self: RuleFilter, table: str, row: RowRun) -> Records:
        del self, table
        return Records((row.run,), row.deltas)

    return [(RuleFilter, "row_run", row_run)]


@deliberate("a manifest names the newest commit when its build ends", CHECKPOINTS)
def manifest_stamp_too_high() -> list[Replaced]:
    real_go_on = Builder._go_on
    ends: list[Stamp] = []

    def go_on(self: Builder, gateway: str, progress: Progress, has_time: Any) -> Any:
        def look() -> bool:
            ends[:] = [self._barrier.raise_heads(gateway).top]
            return bool(has_time())

        return real_go_on(self, gateway, progress, look)

    def put(objects: ObjectStore, manifest: Manifest) -> None:
        since = max([manifest.since, *ends])
        named = replace(manifest, id=checkpoint_id(since, 0), since=since)
        put_manifest(objects, named)

    return [(Builder, "_go_on", go_on), (checkpoint_upkeep, "put_manifest", put)]


@deliberate("the log is trimmed before there is a checkpoint", CHECKPOINTS)
def trim_before_checkpoint() -> list[Replaced]:
    return [(Keeper, "covered", lambda *_: 1 << 62)]


@deliberate("a build begins at what is flushed, visible or not", CHECKPOINTS)
def build_from_the_watermark() -> list[Replaced]:
    def newest(log: Any, state: FlushState, now_ms: int) -> Stamp:
        del now_ms
        stamp: Stamp = max(log.top, state.watermark)
        return stamp

    return [(checkpoint_upkeep, "replay_from", newest)]


@deliberate("a checkpoint lacks the last chunk of each table", CHECKPOINTS)
def last_chunk_is_lost() -> list[Replaced]:
    def put(objects: ObjectStore, manifest: Manifest) -> None:
        tables = {
            name: TableChunks(table.chunks[:-1], table.tombstones)
            for name, table in manifest.tables.items()
            if len(table.chunks) > 1
        }
        put_manifest(objects, replace(manifest, tables=tables))

    return [(checkpoint_upkeep, "put_manifest", put)]


@deliberate(
    "a checkpoint of another epoch is served",
    CHECKPOINTS | {"restores": 2, "clients": 3, "bursts": 5},
)
def checkpoint_of_another_epoch() -> list[Replaced]:
    def latest(self: Checkpoints, gateway: str, epoch: str, since_min: Stamp) -> Manifest | None:
        del since_min
        manifests = [self.manifest(gateway, name) for name in self.ids(gateway)]
        return replace(manifests[-1], epoch=epoch) if manifests else None

    return [(Checkpoints, "latest", latest)]
