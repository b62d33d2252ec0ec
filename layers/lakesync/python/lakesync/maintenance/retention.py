"""Removes what no reader can need: the oldest part of the log, and tombstones of deleted rows.

The log is trimmed. What may be deleted is decided by `trim_horizon`. The steps, for all lanes of a
gateway:

    1. the horizon moves in the main head        from here cursors below it are answered 410
    2. the entries below it are deleted          oldest first, some at a time
    3. those in a head are removed               if all of its entries are below

A crash between any two steps leaves entries that nobody reads; the next trim deletes them. A reader
that read a head before the horizon moved, and entries after, notices the broken chain and reads
again. Law B10: ``docs/spec/commit.md``.

Rows that were deleted long ago are forgotten. The steps, in this order; after a crash between any
two of them, they are repeated:

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
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.layout import MAIN_LANE
from lakesync.core.merge import is_tombstone
from lakesync.errors import ValidationFailed
from lakesync.log.read import ReadBarrier
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.declare import Declare
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, Head, StoredRow, WallClock

# --- the log --------------------------------------------------------------------------------------


_ENTRIES_MAX: Final = 250


@dataclass(frozen=True, slots=True)
class TrimReport:
    """The result of a trim."""

    horizon: Stamp = 0
    """Cursors below are void."""
    finished: bool = True
    """False if time ran out with entries left below the horizon; the next trim continues."""


def trim_horizon(watermark: Stamp, now_ms: int, keep_ms: int, covered: Stamp | None) -> Stamp:
    """Return the stamp up to which entries may be deleted.

    Args:
        watermark: everything up to here is flushed; nothing beyond may be deleted.
        now_ms: the time.
        keep_ms: the least time that entries are kept, from their commit.
        covered: everything up to here is in a checkpoint; None if the gateway has none, and clients
            that are behind read a snapshot.
    """
    old = stamp(max(now_ms - max(keep_ms, VISIBLE_MS_MAX), 0))
    return min(watermark, old) if covered is None else min(watermark, old, covered)


class Trimmer:
    """Trims the logs of gateways. Any number may run at once, also on the same gateway."""

    def __init__(self, buffer: Buffer, *, wall_clock: WallClock, keep_ms: int) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._keep_ms = keep_ms

    def trim(
        self,
        gateway: str,
        *,
        covered: Stamp | None = None,
        has_time: Callable[[], bool] = lambda: True,
    ) -> TrimReport:
        """Delete what is flushed, old and covered. Idempotent, and safe to kill.

        Args:
            gateway: whose log.
            covered: see `trim_horizon`.
            has_time: called before every few deletions; False ends the trim there.

        Raises:
            LakeSyncError: the buffer refused; what was deleted stays deleted.
        """
        self._buffer.config(gateway)  # refuses what only a later release can read
        watermark = self._buffer.flush_state(gateway).watermark
        until = trim_horizon(watermark, self._wall_clock(), self._keep_ms, covered)
        heads = self._buffer.heads(gateway)
        if MAIN_LANE not in heads:
            return TrimReport()
        horizon = heads[MAIN_LANE].trimmed
        if horizon < min(until, max(head.last_logged for head in heads.values())):
            self._raise(gateway, until)
            horizon = until
        finished = all(
            self._drop(gateway, lane, horizon, has_time)
            and self._empty(gateway, lane, head, horizon)
            for lane, head in heads.items()
        )
        return TrimReport(max(horizon, until), finished)

    def _raise(self, gateway: str, until: Stamp) -> None:
        self._buffer.raise_horizon(gateway, until)

    def _empty(self, gateway: str, lane: str, head: Head, horizon: Stamp) -> bool:
        """Remove a head's entries if none of them is above the horizon; False if it just moved."""
        if not head.recent or head.last_logged > horizon:
            return True
        return self._buffer.empty_head(gateway, lane, head)

    def _drop(self, gateway: str, lane: str, horizon: Stamp, has_time: Callable[[], bool]) -> bool:
        """Delete a lane's entries below the horizon; False if time ran out."""
        while has_time():
            if self._buffer.drop_entries(gateway, lane, horizon, _ENTRIES_MAX):
                return True
        return False


# --- tombstones -----------------------------------------------------------------------------------


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
