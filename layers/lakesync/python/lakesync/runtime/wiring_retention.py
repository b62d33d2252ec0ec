"""What ``functions/retain`` asks, as its settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.store import Checkpoints
from lakesync.log.declare import Declare
from lakesync.log.read_barrier import ReadBarrier
from lakesync.maintenance.checkpoint_build import Builder
from lakesync.maintenance.checkpoint_keep import Keeper
from lakesync.maintenance.tombstones import Forgetter
from lakesync.maintenance.trim import Trimmer
from lakesync.runtime import wiring
from lakesync.runtime.retain import Retention

if TYPE_CHECKING:
    from lakesync.runtime.settings import RetainSettings

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def retention(settings: RetainSettings) -> Retention:
    """Give what ``functions/retain`` asks."""
    clock = wiring.wall_clock
    buffer, objects = wiring.buffer(settings), wiring.objects(settings, settings.lake_bucket)
    checkpoints = Checkpoints(objects)
    chance = wiring.Randomness()
    declare = Declare(buffer, wall_clock=clock, sleep_ms=wiring.sleep_ms, chance=chance)
    # A deletion is remembered for as long as a cursor may be behind it.
    remembered_days = max(settings.tombstone_keep_days, settings.log_keep_days)
    return Retention(
        buffer,
        ReadBarrier(buffer),
        builder=Builder(
            buffer,
            objects,
            checkpoints,
            wall_clock=clock,
            chunk_bytes=settings.checkpoint_chunk_bytes,
        ),
        trimmer=Trimmer(buffer, wall_clock=clock, keep_ms=settings.log_keep_days * _DAY_MS),
        forgetter=Forgetter(
            buffer, checkpoints, declare, wall_clock=clock, keep_ms=remembered_days * _DAY_MS
        ),
        keeper=Keeper(objects, checkpoints, wall_clock=clock),
        checkpoints=checkpoints,
        wall_clock=clock,
        every_ms=settings.checkpoint_every_hours * _HOUR_MS,
        lake_rows_min=settings.checkpoint_lake_rows,
    )
