"""Moves what readers may begin from: the log is trimmed, tombstones go, a restore begins an epoch.

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

A buffer that was restored to an earlier moment is a different buffer: it lacks commits that clients
have read, and would issue their stamps again. So, in the operator's step after the restore, it
begins a new epoch, which voids every cursor, at a stamp above all that the lost buffer can have
issued. Clients notice this, read everything again, keep their outbox, and push again what they
themselves wrote (``docs/adr/0004-restored-buffer.md``). Law B12: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.checkpoint import tables_with_rows
from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.gateway_identity import restored_at
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE, LaneCount, lane_number, lane_shard
from lakesync.core.merge import is_tombstone
from lakesync.errors import Conflict, Contention, ValidationFailed
from lakesync.log.read import FinalLog, ReadBarrier, read
from lakesync.ports import NO_HEAD, HeadBusy, HeadMoved
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.declare import Declare
    from lakesync.ports import Buffer, Head, StoredRow, WallClock

# --- the log --------------------------------------------------------------------------------------


_ENTRIES_MAX: Final = 250


@dataclass(frozen=True, slots=True)
class TrimReport:
    horizon: Stamp = 0
    """Cursors below are void."""
    finished: bool = True
    """False if time ran out with entries left below the horizon; the next trim continues."""


def trim_horizon(watermark: Stamp, now_ms: int, keep_ms: int, covered: Stamp | None) -> Stamp:
    """Return the stamp up to which entries may be deleted.

    Args:
        watermark: everything up to here is flushed; nothing beyond may be deleted.
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
            covered: see `trim_horizon`.

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
    rows: int = 0
    finished: bool = True
    place: str = ""
    """Where to continue if time ran out."""


class Forgetter:
    """Forgets tombstones of gateways. Any number may run at once, also on the same gateway.

    Args:
        checkpoints: the latest one shows which tables have tombstones that are old enough.
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
            place: `ForgetReport.place` of the call before, to continue there; empty for a first
                one.

        Raises:
            LakeSyncError: the buffer refused; what is forgotten stays forgotten.
        """
        log = self._barrier.raise_heads(gateway)
        until = stamp(max(self._wall_clock() - self._keep_ms, 0))
        return self._sweep(log, until, place, has_time) if log.trimmed else ForgetReport()

    def _tables(self, log: FinalLog, until: Stamp) -> list[str]:
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


# --- after a restore ------------------------------------------------------------------------------


LEAD_MS: Final = 120_000
"""How far the epoch begins ahead of the operator's clock: no function's clock was further ahead, so
no lost commit has a stamp from there on."""
_TRIES_MAX: Final = 10
_SLICE_DELTAS_MAX: Final = 10_000
_IN_TWO = (
    "the backup cut a commit in two: its log has a gap; restore the table to a second before or "
    "after, and begin the epoch there"
)


def begin_epoch(buffer: Buffer, gateway: str, *, wall_clock: WallClock) -> str:
    """Put a restored gateway into a new epoch, and give its name. Call it while nobody writes.

    Repeating it is harmless: each time all clients read everything again.

    Returns:
        The epoch; empty where the backup is from before the gateway's first commit. To clients that
        have read later commits it will be another gateway.

    Raises:
        Conflict: the restored log is incomplete.
        GatewayDeleted: it was deleted when the backup was made; continue the deletion.
        Contention: a client is writing to it.
        LakeSyncError: the buffer refused.
    """
    for tries in range(1, _TRIES_MAX):
        try:
            return _begin(buffer, gateway, wall_clock())
        except (HeadBusy, HeadMoved):
            buffer.pause(tries)
    raise Contention("the gateway is being written to; stop its functions, and try again")


def _begin(buffer: Buffer, gateway: str, now_ms: int) -> str:
    """Close all lanes, and put the epoch into the main lane's head.

    The heads of a restored buffer may be from before and after a commit that opened a lane. So the
    main lane's list of the others is not relied on.
    """
    heads = buffer.all_heads(gateway)
    # After the heads: saving a configuration from here on moves the main lane's head beyond the one
    # seen.
    config, state = buffer.config(gateway), buffer.flush_state(gateway)
    config.check_not_deleted()  # any part of a deleted gateway may be missing
    top = max((head.commit for head in heads.values()), default=0)
    log = FinalLog(gateway, config, heads, top)
    _check_whole(buffer, log, state.watermark)
    main = heads.pop(MAIN_LANE, None)
    before = (main or NO_HEAD).lanes
    for lane in {*heads, *before.open()} - {MAIN_LANE}:
        head = heads.get(lane)
        if not buffer.close_lane(gateway, lane, head, (head or NO_HEAD).commit + 1):
            raise HeadMoved({lane: head or NO_HEAD})
    used = dict.fromkeys([DEFAULT_SHARD], 1)
    for lane in heads:
        shard = lane_shard(lane)
        used[shard] = max(used.get(shard, 0), lane_number(lane) + 1)
    counts = {
        shard: LaneCount(int(shard == DEFAULT_SHARD), max(number, before.of(shard).used))
        for shard, number in used.items()
    }
    quiet = max((head.last_logged for head in heads.values()), default=0)
    lanes = replace(
        before,
        counts=MappingProxyType(counts),
        changes=before.changes + 1,
        quiet=quiet,
        paused_until_ms=0,
    )
    began = max(top, state.watermark, state.until, stamp(now_ms)) + stamp(LEAD_MS)
    before_restore = (main or NO_HEAD).epoch
    epoch = restored_at(before_restore, began) if before_restore else ""
    buffer.begin_epoch(gateway, main, lanes, began, config.version, epoch)
    return epoch


def _check_whole(buffer: Buffer, log: FinalLog, watermark: Stamp) -> None:
    for lane in log.heads:
        after = max(watermark, log.trimmed)
        while after < log.top:
            try:
                after = read(buffer, log, lane, (after, log.top), _SLICE_DELTAS_MAX).until
            except Contention as exc:
                raise Conflict(_IN_TWO) from exc
