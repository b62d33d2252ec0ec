"""Retention: the tasks of ``stepfunctions/retention.asl.json``; each may die and be repeated.

In the order in which they are done for one gateway:

    plan       whether the checkpoint comes out of the lake, by a job, or is built here
    build      a checkpoint, if anything changed since the latest one
    trim       the log, as far as it is flushed, old, and covered by every checkpoint that is kept
    forget     tombstones that are old enough, and whose delete nobody has to read any more
    clean      checkpoints that are no longer kept

Each task ends when its time is up, and reports so; the state machine calls it again until it is
finished. `lakesync.runtime.retain_slices` handles many gateways in one call. Laws R1-R6:
``docs/spec/retention.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.checkpoint.from_lake import flushed_of, flushed_to_json, out_of_lake
from lakesync.runtime import observe

if TYPE_CHECKING:
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.log.read_barrier import ReadBarrier
    from lakesync.maintenance.checkpoint_build import Builder
    from lakesync.maintenance.checkpoint_keep import Keeper
    from lakesync.maintenance.tombstones import Forgetter
    from lakesync.maintenance.trim import Trimmer
    from lakesync.ports import Buffer
    from lakesync.runtime.delete_gateway import Answer, HasTime


class Retention:
    """What is done for one gateway after the other."""

    def __init__(
        self,
        buffer: Buffer,
        barrier: ReadBarrier,
        *,
        builder: Builder,
        trimmer: Trimmer,
        forgetter: Forgetter,
        keeper: Keeper,
        checkpoints: Checkpoints,
        lake_rows_min: int,
    ) -> None:
        self._buffer = buffer
        self._barrier = barrier
        self._builder = builder
        self._trimmer = trimmer
        self._forgetter = forgetter
        self._keeper = keeper
        self._checkpoints = checkpoints
        self._lake_rows_min = lake_rows_min

    def plan(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Return arguments for the job that builds from the lake; nothing if it is built here."""
        del place, has_time
        log = self._barrier.raise_heads(gateway)
        state = self._buffer.flush_state(gateway)
        latest = self._checkpoints.latest(gateway, log.epoch, log.trimmed)
        if not out_of_lake(log, state, latest, self._lake_rows_min):
            return {"flushed": ""}
        if self._buffer.destinations(gateway).no_lake:
            return {"flushed": ""}  # the lake lacks tables
        flushed = flushed_of(log, state, self._buffer.flushed_tables(gateway))
        return {"flushed": flushed_to_json(flushed)}

    def build(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Build a checkpoint."""
        del place  # its progress is kept with the checkpoints
        report = self._builder.build(gateway, has_time=has_time)
        if report.rows:
            observe.count("CheckpointRows", report.rows)
        return {
            "checkpoint": report.checkpoint,
            "since": str(report.since),
            "rows": report.rows,
            "finished": report.finished,
        }

    def trim(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Trim the log."""
        del place  # what is left of the log is the place
        covered = self._keeper.covered(gateway, self._barrier.raise_heads(gateway).epoch)
        report = self._trimmer.trim(gateway, covered=covered, has_time=has_time)
        return {"horizon": str(report.horizon), "finished": report.finished}

    def forget(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Forget tombstones."""
        report = self._forgetter.forget(gateway, place=place, has_time=has_time)
        if report.rows:
            observe.count("RowsForgotten", report.rows)
        return {
            "rows": report.rows,
            "finished": report.finished,
            "place": report.place,
        }

    def clean(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Remove checkpoints that are no longer kept."""
        del place  # what is left of them is the place
        epoch = self._barrier.raise_heads(gateway).epoch
        report = self._keeper.clean(gateway, epoch, has_time=has_time)
        return {"objects": report.objects, "finished": report.finished}
