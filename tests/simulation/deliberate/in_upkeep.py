"""Faults in trimming the log, in snapshots of the rows, and in restoring a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.client.resync import Resyncer
from lakesync.client.sync import Syncer
from lakesync.core.clock import stamp
from lakesync.core.config import GatewayConfig
from lakesync.core.merge import is_tombstone
from lakesync.errors import CursorExpired
from lakesync.gateway import bootstrap
from lakesync.gateway import pull as pull_module
from lakesync.log import log_cache, push_parts
from lakesync.maintenance import horizons
from lakesync.maintenance.horizons import Trimmer
from lakesync.ports import LogSlice
from lakesync.wire.records import decode_row_state
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import DELETED, FORGETS, TRIMMED

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.storage.file import Position as ClientPosition
    from lakesync.core.messages import Pull, PullPage
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, Head


@deliberate("the log is trimmed before it is flushed")
def trim_before_flush() -> list[Replaced]:
    def horizon(watermark: int, now_ms: int, keep_ms: int, covered: int | None) -> int:
        del watermark, covered
        return stamp(max(now_ms - keep_ms, 0))

    return [(horizons, "trim_horizon", horizon)]


@deliberate("the horizon moves after the entries are gone")
def horizon_after_deletion() -> list[Replaced]:
    def raised(self: Trimmer, gateway: str, until: int) -> None:
        buffer: Any = self._buffer
        buffer._gate.call("delete", lambda: _forget(buffer._world.store, gateway, until))
        buffer.raise_horizon(gateway, until)

    return [(Trimmer, "_raise", raised)]


def _forget(store: Any, gateway: str, until: int) -> None:
    for log in store.all_of(gateway).logs.values():
        gone = [chunk for chunk in log if chunk[-1].stamp <= until]
        del log[: len(gone)]
        store.check_gone(gateway, [entry for chunk in gone for entry in chunk])


@deliberate("a head is emptied though not all of its entries may go")
def young_entries_leave_heads() -> list[Replaced]:
    def empty(self: Trimmer, gateway: str, lane: str, head: Head, horizon: int) -> bool:
        if not head.recent or head.recent[0].stamp > horizon:
            return True
        return self._buffer.empty_head(gateway, lane, head)

    return [(Trimmer, "_empty", empty)]


@deliberate("the pull does not look at the epoch")
def epoch_not_checked() -> list[Replaced]:
    def check(pull: Pull, log: FinalLog) -> None:
        if pull.since < log.trimmed or pull.since > log.top:
            raise CursorExpired("expired")

    return [(pull_module, "check_cursor", check)]


@deliberate("the pull does not look at the horizon")
def horizon_not_checked() -> list[Replaced]:
    def check(pull: Pull, log: FinalLog) -> None:
        if pull.since > log.top or pull.epoch not in {"", log.epoch}:
            raise CursorExpired("expired")

    return [(pull_module, "check_cursor", check), (log_cache, "read", _read_over_gaps)]


def _read_over_gaps(
    buffer: Buffer, log: FinalLog, lane: str, span: tuple[int, int], count_max: int
) -> Any:
    after, until = span
    stored = buffer.entries(log.gateway, lane, *span, count_max)
    recent = [entry for entry in log.heads[lane].recent if after < entry.stamp <= until]
    return LogSlice((*stored.entries, *recent), stored.until)


@deliberate("a restored buffer begins no epoch")
def restore_without_epoch() -> list[Replaced]:
    def begin(buffer: Buffer, gateway: str, *, wall_clock: Any) -> str:
        del buffer, gateway, wall_clock
        return ""

    return [(horizons, "begin_epoch", begin)]


@deliberate("an epoch begins right behind what was restored")
def epoch_begins_too_low() -> list[Replaced]:
    real = horizons.begin_epoch

    def begin(buffer: Buffer, gateway: str, *, wall_clock: Any) -> str:
        del wall_clock
        return real(buffer, gateway, wall_clock=lambda: 0)

    return [(horizons, "begin_epoch", begin), (horizons, "LEAD_MS", 0)]


@deliberate("a deleted gateway takes pushes as ever", DELETED)
def deletion_is_not_heeded() -> list[Replaced]:
    return [(GatewayConfig, "check_not_deleted", lambda _: None)]


@deliberate("the client drops its outbox when its cursor is void")
def outbox_dropped_on_void_cursor() -> list[Replaced]:
    def emptied(self: Syncer) -> None:
        self._file.connection.execute("DELETE FROM _lakesync_outbox")

    return [(Syncer, "_fetch", _fetching(emptied))]


def _fetching(spoil: Callable[[Syncer], None]) -> Any:
    real = Syncer._fetch

    def fetch(self: Syncer, at: ClientPosition, quarantined: int) -> tuple[PullPage, bool]:
        page, rebuilt = real(self, at, quarantined)
        if rebuilt or (page.snapshot and not at.snapshot):
            with self._file.database.transaction():
                spoil(self)
        return page, rebuilt

    return fetch


@deliberate("the client does not offer what a restore lost")
def nothing_is_offered() -> list[Replaced]:
    return [(Resyncer, "hold_back", lambda *_, **__: None)]


@deliberate("the log continues from the end of the log when a snapshot began", TRIMMED)
def snapshot_goes_on_too_late() -> list[Replaced]:
    def top(log: FinalLog, *_: object) -> int:
        return log.top

    return [(bootstrap, "replay_from", top)]


@deliberate("a tombstone is trimmed early: before any horizon is declared", FORGETS)
def tombstone_trimmed_early() -> list[Replaced]:
    return [
        (horizons, "_with_horizons", lambda config, *_: config),
        (horizons, "_is_forgettable", lambda row, _: is_tombstone(decode_row_state(row.state))),
    ]


@deliberate("what is older than the horizon of tombstones is merged", FORGETS)
def horizon_is_not_heeded() -> list[Replaced]:
    return [(push_parts, "may_undo_a_deletion", lambda *_: False)]
