"""What a receipt does to the outbox and the rows: acknowledge, quarantine, stamp again, keep.

Rules of this module
    1. An entry leaves the outbox only when a receipt, or an echo in a page, says that the gateway
       holds it. A receipt whose count does not add up is no receipt.
    2. Nothing is stamped again while an earlier push of it may have arrived, or may yet arrive.
       Stamping again takes the refused entry and everything behind it, so that this client's edits
       keep their order; then the rows concerned are merged again without the old stamps.
    3. All of a receipt is settled in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client.upload.entries import Status
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

    from lakesync.client.download.pending_echo import Untold
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
class Settled:
    """What became of a batch."""

    accepted: int = 0
    restamped: int = 0
    quarantined: list[tuple[Entry, LakeSyncError]] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)
    """Not held by the gateway, and to be pushed again as they are."""
    unsure: list[Entry] = field(default_factory=list)
    """Refused as late, and perhaps only because an earlier push has just brought them there."""
    refused: LakeSyncError | None = None
    """Why the batch was refused as a whole; None if it was not."""
    stamped_wrong: LakeSyncError | None = None
    """Why deltas were stamped again; None if none were."""
    blocked: LakeSyncError | None = None
    """Why some must wait; None if the next batch may leave at once."""


class Settler:
    """Settles receipts. Used within the caller's transaction."""

    def __init__(
        self, outbox: Outbox, rows: Rows, untold: Untold, catalogue: Catalogue, clock: DeviceClock
    ) -> None:
        self._outbox = outbox
        self._rows = rows
        self._untold = untold
        self._catalogue = catalogue
        self._clock = clock

    def settle(self, batch: Batch, receipt: PushReceipt) -> Settled:
        """Do what a receipt says.

        Args:
            batch: what was pushed, each entry with the status that it had before it left.
            receipt: the answer.

        Raises:
            InternalError: the receipt does not fit the batch; nothing was settled.
        """
        refused = _refusals(batch, receipt)
        settled = Settled()
        accepted: list[Entry] = []
        late: list[Entry] = []
        doubtful = any(
            _may_be_there(batch.entries[place], error, receipt.server_time_ms)
            or _may_have_come(batch.entries[place], error)
            for place, error in refused.items()
        )
        for place, entry in enumerate(batch.entries):
            error = refused.get(place)
            if error is None or _held_before(entry, error):
                accepted.append(entry)
            elif entry.status == Status.LOST and isinstance(error, OutOfOrder):
                self._outbox.make_new([entry])
                settled.stamped_wrong = settled.stamped_wrong or error
            elif _may_have_come(entry, error):
                settled.unsure.append(entry)
                settled.blocked = error
            elif not isinstance(error, ClockDrift | OutOfOrder):
                _sort_out(entry, error, settled)
            elif doubtful:
                settled.blocked = error
                if entry.status == Status.PENDING:
                    settled.kept.append(entry)
            else:
                late.append(entry)
                if not isinstance(settled.stamped_wrong, ClockDrift):
                    settled.stamped_wrong = error
        self._acknowledge(accepted, settled, receipt.server_hlc)
        self._outbox.quarantine(settled.quarantined)
        self._outbox.mark_pending(settled.kept)
        self._outbox.mark_late(settled.unsure)
        if late:
            self._outbox.mark_pending(late)
            settled.restamped = self._restamp_late(batch, late, settled, receipt.server_time_ms)
        return settled

    def _restamp_late(
        self, batch: Batch, late: list[Entry], settled: Settled, server_ms: int
    ) -> int:
        start = _start(batch, late[0])
        if not isinstance(settled.stamped_wrong, ClockDrift):
            events = {entry.delta.table for entry in late}
            return self.restamp(start, drifted=False, events=events)
        # The clock cannot fall back behind what was set aside, so that goes with them.
        ahead = self._outbox.first_quarantined(stamp(server_ms + DRIFT_MS_MAX))
        return self.restamp(min(start, ahead or start), drifted=True)

    def _acknowledge(self, entries: list[Entry], settled: Settled, by: Stamp) -> None:
        settled.accepted = len(entries)
        # An entry may be gone by now: another process shares the file, or an echo came first.
        deltas = self._outbox.known(entry.delta for entry in entries)
        if deltas:
            self._clock.accepted(max(delta.hlc for delta in deltas))
        stale = self._rows.stale_among(deltas)
        kept = {delta.hlc for delta in stale}  # a stamp has one place in the outbox
        known = [delta for delta in deltas if delta.hlc not in kept]
        # What is held of a stale row goes with the first page that brings the row, which may be one
        # from before these: so they stay until everything was read.
        self._outbox.hold_back(entry for entry in entries if entry.hlc in kept)
        self._untold.note(known, by)
        self._rows.acknowledge(known)
        self._outbox.remove(delta.hlc for delta in known)

    def restamp(self, start: Stamp, *, drifted: bool, events: Collection[str] = ()) -> int:
        """Stamp every entry at or behind ``start`` again, in the same order; gives their number.

        Args:
            start: the first stamp concerned.
            drifted: the stamps lie in the future, and the clock falls back before it goes on.
            events: tables whose rows are events: of these, what may have arrived stays as it is.
        """
        doubted = {self._catalogue.table(table, ()).id for table in events}
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
            touched[self._catalogue.table(old.table, ()).id, old.row_id] = None
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


def _may_have_come(entry: Entry, error: LakeSyncError) -> bool:
    # An entry whose earlier push got no answer may be late because it is there already, since a
    # moment ago even if a pull did not find it. Stamping that one again would make it two events. A
    # pull tells (`Outbox.settle_doubts`): what is late now cannot arrive later on.
    known = {Status.PENDING, Status.OFFERED, Status.LOST}
    return isinstance(error, OutOfOrder) and entry.status not in known


def _held_before(entry: Entry, error: LakeSyncError) -> bool:
    # It was accepted once, and a client's events are accepted in the order of their stamps. So one
    # that is too late for a restored buffer was accepted before the moment that was restored. (But
    # for a push whose lanes the restore parted: then it is `Status.LOST`, unless it is very old.)
    return isinstance(error, OutOfOrder) and entry.status == Status.OFFERED


def _may_be_there(entry: Entry, error: LakeSyncError, server_ms: int) -> bool:
    # A push that got no answer may have met a function whose clock was ahead of this one's, or may
    # still be on its way. Stamping such an edit again could make it two events; it waits until its
    # time has come, and is then recognised if it is there. One that is too far ahead for any push
    # to be still under way when its time comes is nowhere.
    ahead_ms = stamp_ms(entry.hlc) - server_ms
    drifted = isinstance(error, ClockDrift) and entry.status != Status.PENDING
    return drifted and ahead_ms <= UNDER_WAY_MS_MAX


def _sort_out(entry: Entry, error: LakeSyncError, settled: Settled) -> None:
    if isinstance(error, AtomicPushRefused):
        settled.kept.append(entry)
    elif isinstance(error, AtomicPushTooLarge):
        settled.kept.append(entry)
        settled.refused = error
    elif error.retry is Retry.NEVER:
        settled.quarantined.append((entry, error))
    else:
        settled.kept.append(entry)
        settled.blocked = error


def _start(batch: Batch, first: Entry) -> Stamp:
    """Give where stamping again begins: with the whole transaction of the first refused entry."""
    if first.txn is None:
        return first.hlc
    return min(entry.hlc for entry in batch.entries if entry.txn == first.txn)
