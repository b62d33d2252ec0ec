"""Forget: remove the tombstones of rows that were deleted long ago.

The steps, in this order; after a crash between any two of them, they are repeated:

    1. rows are scanned               for those that were deleted long ago and whose last commit is
                                      trimmed: every remaining reader has read it
    2. their tables' horizons rise    no push that was decided without them can commit after this
    3. each is removed                on the condition that its last commit is still the one seen

A table of which nothing is removed keeps its horizon, at first none: so history can be loaded into
it. Nothing is ever removed from a table that is declared to keep its tombstones.

A client that still holds the row must have read its deletion, or begins again: no cursor reaches
back to a trimmed commit. Laws R5-R6: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.checkpoint.replay_from import tables_with_rows
from lakesync.core.clock import stamp
from lakesync.core.forgetting import is_tombstone
from lakesync.errors import ValidationFailed
from lakesync.log.read_barrier import ReadBarrier
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.declare import Declare
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer, StoredRow, WallClock

_SLICE_ROWS_MAX: Final = 1_000
_ROWS_AT_ONCE: Final = 1_000
"""Tombstones that are collected before horizons rise for them: each rise is a new configuration,
which all writers have to read."""
_TOMBSTONE_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """The result of one call."""

    rows: int = 0
    finished: bool = True
    place: str = ""
    """Where to continue if time ran out."""


class Forgetter:
    """Forgets tombstones of gateways. Any number may run at once, also on the same gateway.

    Args:
        buffer: the rows.
        checkpoints: the latest one shows which tables have tombstones that are old enough.
        declare: puts a configuration in force.
        wall_clock: the time.
        keep_ms: the least time that a deletion is remembered, by its stamp.
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
        self._barrier = ReadBarrier(buffer)

    def forget(
        self, gateway: str, *, place: str = "", has_time: Callable[[], bool] = lambda: True
    ) -> ForgetReport:
        """Forget what is old enough. Idempotent, and safe to kill.

        Args:
            gateway: whose rows.
            place: `ForgetReport.place` of the call before, to continue there; empty for a first
                one.
            has_time: called before each read; False ends the call there.

        Raises:
            LakeSyncError: the buffer refused; what is forgotten stays forgotten.
        """
        log = self._barrier.raise_heads(gateway)
        until = stamp(max(self._wall_clock() - self._keep_ms, 0))
        return self._sweep(log, until, place, has_time) if log.trimmed else ForgetReport()

    def _tables(self, log: FinalLog, until: Stamp) -> list[str]:
        """Return the tables that may have something to forget, by name."""
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        if latest is None:
            candidates = tables_with_rows(log, self._buffer.flushed_tables(log.gateway))
        else:
            candidates = [
                name for name, table in latest.tables.items()
                if table.tombstones.count and table.tombstones.oldest <= until
            ]  # fmt: skip
        return sorted(name for name in candidates if not log.config.keeps_tombstones(name))

    def _sweep(
        self, log: FinalLog, until: Stamp, place: str, has_time: Callable[[], bool]
    ) -> ForgetReport:
        first, at = _place_of(place)
        old: list[_Tombstone] = []
        rows = 0
        for table in self._tables(log, until):
            if table < first:
                continue
            place = at if table == first else ""
            while True:
                if not has_time():
                    rows += self._forget(log.gateway, old, until)
                    return ForgetReport(rows, finished=False, place=f"{table}|{place}")
                scanned = self._buffer.scan_rows(log.gateway, table, place, _SLICE_ROWS_MAX)
                old += [
                    _Tombstone(table, row_id, row.commit) for row_id, row in scanned.rows
                    if row.commit <= log.trimmed and _is_forgettable(row, until)
                ]  # fmt: skip
                if len(old) >= _ROWS_AT_ONCE:
                    rows += self._forget(log.gateway, old, until)
                    old = []
                place = scanned.place
                if not place:
                    break
        return ForgetReport(rows + self._forget(log.gateway, old, until))

    def _forget(self, gateway: str, old: list[_Tombstone], until: Stamp) -> int:
        """Raise the horizons of the tombstones' tables, then remove them; returns their number."""
        if not old:
            return 0
        tables = {row.table for row in old}
        config = self._declare(gateway, lambda config: _with_horizons(config, tables, until))
        return sum(
            self._buffer.forget_row(gateway, row.table, row.row_id, row.commit) for row in old
            if not config.keeps_tombstones(row.table)
        )  # fmt: skip


class _Tombstone(NamedTuple):
    table: str
    row_id: str
    commit: Stamp
    """The commit that wrote it."""


def _with_horizons(config: GatewayConfig, tables: set[str], until: Stamp) -> GatewayConfig:
    """Return the configuration in which what was deleted up to a stamp may be forgotten."""
    horizons = config.tombstone_horizons
    raised = {
        table: until for table in sorted(tables)
        if until > horizons.get(table, 0) and not config.keeps_tombstones(table)
    }  # fmt: skip
    if not raised:
        return config
    return replace(config, tombstone_horizons=MappingProxyType({**horizons, **raised}))


def _is_forgettable(row: StoredRow, until: Stamp) -> bool:
    if len(row.state) != _TOMBSTONE_BYTES:
        return False
    state = decode_row_state(row.state)
    return is_tombstone(state) and state.deleted <= until


def _place_of(place: str) -> tuple[str, str]:
    if not place:
        return "", ""
    table, bar, at = place.partition("|")
    if not bar or (at and at[0] not in "0123456789abcdef"):
        raise ValidationFailed("place must be that of the answer before", field="place")
    return table, at
