"""Erasure of rows: no value of them stays in the buffer, in checkpoints or in staged batches.

The rows must have been deleted before, in the ordinary way, so that every device drops them. The
steps, in this order; after a crash between any two of them, they are repeated:

    1. the deletions are flushed      until then it waits: a flush needs the log
    2. a checkpoint is built          behind the deletions, if the gateway has any
    3. all others are removed         their manifests first; a client that reads one begins again
    4. the log is trimmed             up to the deletions; cursors below are void
    5. staged batches are removed     of the rows' tables, once they are delivered

Work that was in flight at the begin may still write what it had read: a build its chunk, a flush
its batch. So the erasure is complete only after it was repeated `QUIET_MS` later. Law E5:
``docs/spec/erasure.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import manifest as names
from lakesync.core.clock import VISIBLE_MS_MAX, stamp_ms
from lakesync.errors import Conflict
from lakesync.log.read_barrier import ReadBarrier
from lakesync.maintenance.checkpoint_build import Builder, BuildReport
from lakesync.maintenance.trim import Trimmer
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, ObjectStore, RowKey, WallClock

ROWS_MAX: Final = 1_000
"""Rows that one call erases."""
_BUILDS_MAX: Final = 3
"""Builds of one call: an earlier one may have to be finished first."""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The progress of an erasure."""

    waits_for: str = ""
    """What has to happen first; empty once it is done."""
    ready_ms: int = 0
    """When to call again, if that is known."""
    checkpoints: int = 0
    """Objects of checkpoints that were removed."""


class Eraser:
    """Erases rows of gateways. Any number may run at once.

    Args:
        buffer: the store of the rows.
        objects: the store of checkpoints.
        checkpoints: the same, for reading.
        wall_clock: the time.
    """

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        checkpoints: Checkpoints,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._checkpoints = checkpoints
        self._wall_clock = wall_clock
        self._barrier = ReadBarrier(buffer)
        self._builder = Builder(buffer, objects, checkpoints, wall_clock=wall_clock)
        self._trimmer = Trimmer(buffer, wall_clock=wall_clock, keep_ms=0)

    def erase(self, gateway: str, rows: Sequence[RowKey]) -> ErasureReport:
        """Erase deleted rows as far as possible now. Idempotent, and safe to kill.

        Cost: the gateway's log is trimmed, so every client that is behind begins with a checkpoint.

        Args:
            gateway: whose.
            rows: at most `ROWS_MAX` rows that were deleted, or never existed.

        Raises:
            Conflict: a row has values; delete it first.
            LakeSyncError: a store refused; what was removed stays removed.
        """
        deleted = self._deleted_at(gateway, rows)
        log = self._barrier.raise_heads(gateway)
        # A forgotten row has no commit any more: the whole log must be trimmed.
        until = deleted or max((head.last_logged for head in log.heads.values()), default=0)
        if self._buffer.flush_state(gateway).watermark < until:
            return ErasureReport("flush")
        ready_ms = stamp_ms(until) + VISIBLE_MS_MAX + 1
        if self._wall_clock() < ready_ms:
            return ErasureReport("time", ready_ms)
        covered, removed = None, 0
        if self._checkpoints.ids(gateway):
            built = self._build(gateway, until)
            covered = built.since
            if covered < until:
                return ErasureReport("checkpoint")
            removed = self._remove_checkpoints(gateway, built.checkpoint)
        report = self._trimmer.trim(gateway, covered=covered)
        is_left = report.horizon < until or not report.finished or self._is_logged(gateway, until)
        return ErasureReport("later commits" if is_left else "", checkpoints=removed)

    def _deleted_at(self, gateway: str, rows: Sequence[RowKey]) -> Stamp:
        """Return the last commit of the rows; 0 if any has left no state.

        Raises:
            Conflict: one has values.
        """
        stored = self._buffer.rows(gateway, rows)
        for (table, row_id), row in stored.items():
            if decode_row_state(row.state).columns:
                raise Conflict(
                    f"the row {row_id} of {table} still has values: delete it first", field="row"
                )
        if len(stored) < len(set(rows)):
            return 0
        return max(row.commit for row in stored.values())

    def _build(self, gateway: str, until: Stamp) -> BuildReport:
        """Build checkpoints until one begins behind a stamp, at most a few times."""
        report = BuildReport()
        for _ in range(_BUILDS_MAX):
            report = self._builder.build(gateway)
            if report.since >= until:
                break
        return report

    def _remove_checkpoints(self, gateway: str, kept: str) -> int:
        """Remove all objects of every checkpoint but one; returns how many."""
        chunks = names.chunks_prefix(gateway)
        others = [name for name in self._checkpoints.ids(gateway) if name != kept]
        doomed = [names.manifest_key(gateway, name) for name in others]
        for key in self._objects.list_objects(chunks):
            checkpoint = key[len(chunks) :].partition("/")[0]
            if names.is_checkpoint_id(checkpoint) and checkpoint != kept:
                doomed.append(key)
        for key in doomed:
            self._objects.delete_object(key)
        return len(doomed)

    def _is_logged(self, gateway: str, until: Stamp) -> bool:
        """Return whether an entry is left up to a stamp: it may share an item with a later one."""
        heads = self._buffer.all_heads(gateway)
        return any(
            (head.recent and head.recent[0].stamp <= until)
            or self._buffer.entries(gateway, lane, 0, until, 1).entries
            for lane, head in heads.items()
        )
