"""Forget: the tombstones of rows that were deleted long ago go.

The steps, in this order; whoever is killed between any two of them is followed by one that repeats:

    1. the horizon is declared        no push that was decided without it can commit after this
    2. rows are scanned               those go that were deleted at or below the horizon, and whose
                                      last commit is trimmed: whoever still reads has read it
    3. each goes on the condition     that the commit which was seen still is its last

Whatever still holds the row must have read that it was deleted, or begins anew: a cursor reaches
back to no commit that is trimmed. Laws R5-R6: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.replay_from import tables_with_rows
from lakesync.core.clock import stamp
from lakesync.core.forgetting import is_tombstone
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.log.read_barrier import Fence
from lakesync.result import Err, Ok, Result
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.declare import Declare
    from lakesync.log.read_barrier import FencedLog
    from lakesync.ports import Buffer, StoredRow, WallClock

_SLICE_ROWS_MAX: Final = 1_000
_TOMBSTONE_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """What was forgotten."""

    horizon: Stamp = 0
    """Deletions up to here may be forgotten."""
    rows: int = 0
    finished: bool = True
    place: str = ""
    """Where to go on if time ran out."""


class Forgetter:
    """Forgets tombstones of gateways. Any number may run at once, on the same gateway too.

    Args:
        buffer: where the rows are.
        checkpoints: the latest one tells which tables have tombstones that are old enough.
        declare: puts a configuration in force.
        wall_clock: the time.
        keep_ms: how long a deletion is remembered at the least, by its stamp.
    """

    def __init__(
        self,
        buffer: Buffer,
        checkpoints: Checkpoints,
        declare: Declare,
        *,
        wall_clock: WallClock,
        keep_ms: int,
    ) -> None:
        self._buffer = buffer
        self._checkpoints = checkpoints
        self._declare = declare
        self._wall_clock = wall_clock
        self._keep_ms = keep_ms
        self._fence = Fence(buffer)

    def forget(
        self, gateway: str, *, place: str = "", has_time: Callable[[], bool] = lambda: True
    ) -> Result[ForgetReport, LakeSyncError]:
        """Forget what is old enough. Safe to repeat, and to kill.

        Args:
            gateway: whose rows.
            place: `ForgetReport.place` of the call before, to go on there; empty for a first one.
            has_time: asked before each read; False ends it there.
        """
        try:
            log = self._fence.raise_heads(gateway)
            until = stamp(max(self._wall_clock() - self._keep_ms, 0))
            tables = self._tables(log, until)
            if not tables or not log.trimmed:
                return Ok(ForgetReport(log.config.forgotten))
            config = self._declare(gateway, lambda held: _with_horizon(held, until))
            return Ok(self._sweep(log, config.forgotten, tables, place, has_time))
        except LakeSyncError as error:
            return Err(error)

    def _tables(self, log: FencedLog, until: Stamp) -> list[str]:
        """Give the tables that have something to forget, as far as the latest checkpoint tells."""
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        if latest is None:
            return tables_with_rows(log, self._buffer.flush_state(log.gateway))
        return [
            name for name, held in latest.tables.items()
            if held.tombstones.count and held.tombstones.oldest <= until
        ]  # fmt: skip

    def _sweep(
        self,
        log: FencedLog,
        horizon: Stamp,
        tables: list[str],
        place: str,
        has_time: Callable[[], bool],
    ) -> ForgetReport:
        first, at = _place_of(place)
        rows = 0
        for table in tables:
            if table < first:
                continue
            place = at if table == first else ""
            while True:
                if not has_time():
                    return ForgetReport(horizon, rows, finished=False, place=f"{table}|{place}")
                found = self._buffer.scan_rows(log.gateway, table, place, _SLICE_ROWS_MAX)
                for row_id, row in found.rows:
                    if row.commit <= log.trimmed and _is_forgettable(row, horizon):
                        rows += self._buffer.forget_row(log.gateway, table, row_id, row.commit)
                place = found.place
                if not place:
                    break
        return ForgetReport(horizon, rows)


def _with_horizon(held: GatewayConfig, until: Stamp) -> GatewayConfig:
    return replace(held, forgotten=until) if until > held.forgotten else held


def _is_forgettable(row: StoredRow, horizon: Stamp) -> bool:
    if len(row.state) != _TOMBSTONE_BYTES:
        return False
    state = decode_row_state(row.state)
    return is_tombstone(state) and state.deleted <= horizon


def _place_of(place: str) -> tuple[str, str]:
    if not place:
        return "", ""
    table, bar, at = place.partition("|")
    if not bar or (at and at[0] not in "0123456789abcdef"):
        raise ValidationFailed("place must be that of the answer before", field="place")
    return table, at
