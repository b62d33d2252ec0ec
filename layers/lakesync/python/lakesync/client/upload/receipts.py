"""What a receipt does to the outbox and the rows: acknowledge, quarantine, stamp again, keep.

Rules of this module
    1. An entry leaves the outbox only when a receipt, or an echo in a page, says that the gateway
       has it. A receipt whose count does not add up is no receipt.
    2. Nothing is stamped again while an earlier push of it may have arrived, or may yet arrive.
       Stamping again takes the refused entry and everything behind it, so that this client's edits
       keep their order; then the rows concerned are merged again without the old stamps.
    3. All of a receipt is applied in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client.upload.entries import IN_DOUBT, Status
from lakesync.core.clock import DRIFT_MS_MAX, stamp, stamp_ms
from lakesync.core.delta import checked_delta
from lakesync.core.messages import OutcomeKind
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    ClockDrift,
    InternalError,
    LakeSyncError,
    OutOfOrder,
    Retry,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.client.download.pending_echo import PendingEcho
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.client.storage.rows import LocalKey, Rows
    from lakesync.client.upload.batches import Batch
    from lakesync.client.upload.entries import Entry
    from lakesync.client.upload.outbox import Outbox
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PushReceipt


UNDER_WAY_MS_MAX: Final = 120_000
"""How long a push that was given up may still arrive somewhere."""


@dataclass(slots=True)
class BatchResult:
    """What became of a batch."""

    accepted: int = 0
    restamped: int = 0
    quarantined: list[tuple[Entry, LakeSyncError]] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)
    """The gateway does not have them; they are pushed again as they are."""
    unsure: list[Entry] = field(default_factory=list)
    """Refused as late, perhaps because an earlier push has just arrived."""
    refused: LakeSyncError | None = None
    """Why the batch was refused as a whole; None if it was not."""
    stamped_wrong: LakeSyncError | None = None
    """Why deltas were stamped again; None if none was."""
    blocked: LakeSyncError | None = None
    """Why some must wait; None if the next batch may leave at once."""


@dataclass
class Receipts:
    """Applies receipts. Used within the caller's transaction."""

    _outbox: Outbox
    _rows: Rows
    _pending_echo: PendingEcho
    _catalogue: Catalogue
    _clock: DeviceClock

    def apply(self, batch: Batch, receipt: PushReceipt) -> BatchResult:
        """Do what a receipt says; the batch's entries have the statuses from before it left."""
        refused = _refusals(batch, receipt)
        result = BatchResult()
        accepted: list[Entry] = []
        late: list[Entry] = []
        doubtful = any(
            _future_but_maybe_in_flight(batch.entries[index], error, receipt.server_time_ms)
            or _late_but_maybe_stored(batch.entries[index], error)
            for index, error in refused.items()
        )
        for index, entry in enumerate(batch.entries):
            error = refused.get(index)
            if error is None or _stored_before_restore(entry, error):
                accepted.append(entry)
            elif entry.status == Status.LOST and isinstance(error, OutOfOrder):
                self._outbox.make_new([entry])
                result.stamped_wrong = result.stamped_wrong or error
            elif _late_but_maybe_stored(entry, error):
                result.unsure.append(entry)
                result.blocked = error
            elif not isinstance(error, ClockDrift | OutOfOrder):
                _sort_out(entry, error, result)
            elif doubtful:
                result.blocked = error
                if entry.status == Status.PENDING:
                    result.kept.append(entry)
            else:
                late.append(entry)
                if not isinstance(result.stamped_wrong, ClockDrift):
                    result.stamped_wrong = error
        self._acknowledge(accepted, result, receipt.server_hlc)
        self._outbox.quarantine(result.quarantined)
        self._outbox.mark_pending(result.kept)
        self._outbox.mark_late(result.unsure)
        if late:
            self._outbox.mark_pending(late)
            result.restamped = self._restamp_late(batch, late, result, receipt.server_time_ms)
        return result

    def _restamp_late(
        self, batch: Batch, late: list[Entry], result: BatchResult, server_ms: int
    ) -> int:
        start = _start(batch, late[0])
        if not isinstance(result.stamped_wrong, ClockDrift):
            events = {entry.delta.table for entry in late}
            return self.restamp(start, drifted=False, events=events)
        # The clock cannot fall back behind what was set aside, so that goes with them.
        ahead = self._outbox.first_quarantined(stamp(server_ms + DRIFT_MS_MAX))
        return self.restamp(min(start, ahead or start), drifted=True)

    def _acknowledge(self, entries: list[Entry], result: BatchResult, by: Stamp) -> None:
        result.accepted = len(entries)
        # An entry may be gone by now: another process shares the file, or an echo came first.
        deltas = self._outbox.known(entry.delta for entry in entries)
        if deltas:
            self._clock.accepted(max(delta.hlc for delta in deltas))
        stale = self._rows.stale_among(deltas)
        kept = {delta.hlc for delta in stale}  # the stamp is the outbox's key
        known = [delta for delta in deltas if delta.hlc not in kept]
        # The first page that shows a stale row replaces it, and that page may be older than these
        # edits: so they stay in the outbox until everything was read.
        self._outbox.hold_back(entry for entry in entries if entry.hlc in kept)
        self._pending_echo.note(known, by)
        self._rows.acknowledge(known)
        self._outbox.remove(delta.hlc for delta in known)

    def restamp(self, start: Stamp, *, drifted: bool, events: Collection[str] = ()) -> int:
        """Stamp every entry at or behind ``start`` again, in the same order; gives their number.

        Where they drifted into the future the clock falls back first. Of tables of events, what may
        have arrived stays as it is.
        """
        doubted = {self._catalogue.known(table).id for table in events}
        taken = self._outbox.take_from(start, doubted)
        if drifted:
            self._clock.step_back()
        touched: dict[LocalKey, None] = {}
        groups: dict[int, int] = {}
        for entry, rest in taken:
            old = entry.delta
            hlc = self._clock.now()
            delta = checked_delta(old.op, old.table, old.row_id, old.client_id, hlc, old.columns)
            txn = None if entry.txn is None else groups.setdefault(entry.txn, hlc)
            self._outbox.put_back(entry._replace(txn=txn), rest, delta)
            touched[self._catalogue.known(old.table).id, old.row_id] = None
        self._rows.refold(touched, {})
        return len(taken)


def _refusals(batch: Batch, receipt: PushReceipt) -> dict[int, LakeSyncError]:
    refused: dict[int, LakeSyncError] = {}
    for outcome in receipt.outcomes:
        known = outcome.index < len(batch.entries)
        if not known or outcome.delta_id != batch.entries[outcome.index].delta.delta_id:
            raise InternalError("the receipt names a delta that was not pushed; push again")
        if outcome.kind is OutcomeKind.REFUSED:
            refused[outcome.index] = outcome.error or InternalError("refused without a reason")
    if receipt.accepted != len(batch.entries) - len(refused):
        raise InternalError(
            f"the receipt counts {receipt.accepted} accepted deltas out of {len(batch.entries)} "
            f"with {len(refused)} refused; nothing is taken for accepted: push again"
        )
    return refused


def _late_but_maybe_stored(entry: Entry, error: LakeSyncError) -> bool:
    # If an earlier push of the entry got no answer, it may be late because the gateway has it by
    # now. Stamped again it would be two events. The next pull tells (`Outbox.settle_doubts`): what
    # is late now cannot arrive any more.
    return isinstance(error, OutOfOrder) and entry.status in IN_DOUBT


def _stored_before_restore(entry: Entry, error: LakeSyncError) -> bool:
    # The gateway accepts a client's events in the order of their stamps. So an event that was
    # accepted once, and is late for the restored buffer, is from before the restored moment: the
    # buffer has it. (Unless the backup parted the lanes of its push: then it is `Status.LOST`.)
    return isinstance(error, OutOfOrder) and entry.status == Status.OFFERED


def _future_but_maybe_in_flight(entry: Entry, error: LakeSyncError, server_ms: int) -> bool:
    # A push that got no answer may have met a function with a faster clock, or may still be on its
    # way. Stamped again, the edit could be two events: so it waits until its time has come, and is
    # then recognised if the gateway has it. If it lies so far ahead that no push can still be under
    # way by then, the gateway will never have it.
    ahead_ms = stamp_ms(entry.hlc) - server_ms
    drifted = isinstance(error, ClockDrift) and entry.status != Status.PENDING
    return drifted and ahead_ms <= UNDER_WAY_MS_MAX


def _sort_out(entry: Entry, error: LakeSyncError, result: BatchResult) -> None:
    if isinstance(error, AtomicPushRefused):
        result.kept.append(entry)
    elif isinstance(error, AtomicPushTooLarge):
        result.kept.append(entry)
        result.refused = error
    elif error.retry is Retry.NEVER:
        result.quarantined.append((entry, error))
    else:
        result.kept.append(entry)
        result.blocked = error


def _start(batch: Batch, first: Entry) -> Stamp:
    """Give where stamping again begins: with the whole transaction of the first refused entry."""
    if first.txn is None:
        return first.hlc
    return min(entry.hlc for entry in batch.entries if entry.txn == first.txn)
