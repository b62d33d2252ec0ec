"""Builds what ``functions/retain`` needs. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.store import Checkpoints
from lakesync.log.declare import Declare
from lakesync.log.read_barrier import ReadBarrier
from lakesync.maintenance.checkpoint_build import Builder
from lakesync.maintenance.checkpoint_keep import Keeper
from lakesync.maintenance.deletion import Deleter
from lakesync.maintenance.tombstones import Forgetter
from lakesync.maintenance.trim import Trimmer
from lakesync.runtime import wiring, wiring_access
from lakesync.runtime.delete_gateway import delete_task
from lakesync.runtime.retain import Retention
from lakesync.runtime.retain_slices import Slices

if TYPE_CHECKING:
    from lakesync.ports import Buffer
    from lakesync.runtime.delete_gateway import DeleteTask
    from lakesync.runtime.settings_retention import RetainSettings

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def retention(settings: RetainSettings) -> tuple[Retention, Slices, DeleteTask]:
    """Return the services behind ``functions/retain``: for one gateway, for many, to delete one."""
    buffer = wiring.buffer(settings)
    one = _of_one(settings, buffer)
    every_ms = settings.checkpoint_every_hours * _HOUR_MS
    slices = Slices(buffer, one, wall_clock=wiring.wall_clock, every_ms=every_ms)
    return one, slices, delete_task(_deleter(settings, buffer), wiring.wall_clock)


def _deleter(settings: RetainSettings, buffer: Buffer) -> Deleter:
    clock, chance = wiring.wall_clock, wiring.Randomness()
    return Deleter(
        buffer,
        wiring_access.items(settings),
        wiring_access.store(settings),
        wiring.objects(settings, settings.lake_bucket),
        Declare(buffer, wall_clock=clock, sleep_ms=wiring.sleep_ms, chance=chance),
        wall_clock=clock,
    )


def _of_one(settings: RetainSettings, buffer: Buffer) -> Retention:
    clock = wiring.wall_clock
    objects = wiring.objects(settings, settings.lake_bucket)
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
        lake_rows_min=settings.checkpoint_lake_rows,
    )
