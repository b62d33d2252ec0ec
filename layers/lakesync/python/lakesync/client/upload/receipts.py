"""The effects of a receipt on the outbox and rows: acknowledge, quarantine, stamp again, keep.

Rules of this module
    1. An entry leaves the outbox only when a receipt, or an echo in a page, shows that the gateway
       has it. A receipt whose count does not add up is invalid.
    2. Nothing is stamped again while an earlier push of it may have arrived, or may yet arrive.
       Stamping again takes the refused entry and every later one, so that this client's edits keep
       their order; then the rows concerned are merged again without the old stamps.
    3. All of a receipt is applied in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client.download.pending_echo import PendingEcho, ruled_tables
from lakesync.client.download.unread import Unread
from lakesync.client.upload.entries import IN_DOUBT, Status
from lakesync.core.clock import DRIFT_MS_MAX, stamp, stamp_ms
from lakesync.core.delta import Op, known_delta
from lakesync.core.messages import OutcomeKind
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    ClockDrift,
    InternalError,
    LakeSyncError,
    OutOfOrder,
    Retry,
    RowDeleted,
    TableNotDeclared,
)

if TYPE_CHECKING:
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import LocalKey
    from lakesync.client.upload.batches import Batch
    from lakesync.client.upload.entries import Entry
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
    refused: LakeSyncError | None = None
    """Why the batch was refused as a whole; None if it was not."""
    stamped_wrong: LakeSyncError | None = None
    """Why deltas were stamped again; None if none was."""
    blocked: LakeSyncError | None = None
    """Why some must wait; None if the next batch may leave at once."""


class Receipts:
    """Applies receipts. Used within the caller's transaction."""

    def __init__(self, file: ClientFile) -> None:
        self.file = file
        self.pending_echo = PendingEcho(file)

    def apply(self, batch: Batch, receipt: PushReceipt) -> BatchResult:
        """Apply a receipt; the batch's entries have their statuses from before the push."""
        refused = _refusals(batch, receipt)
        result = BatchResult()
        accepted: list[Entry] = []
        late: list[Entry] = []
        unsure: list[Entry] = []
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
                self.file.outbox.make_new([entry])
                result.stamped_wrong = result.stamped_wrong or error
            elif _late_but_maybe_stored(entry, error):
                unsure.append(entry)
                result.blocked = error
            elif not isinstance(error, ClockDrift | OutOfOrder):
                _sort_out(
                    entry, error, result, is_final=self._is_final(entry, error, receipt.server_hlc)
                )
            elif doubtful:
                result.blocked = error
                if entry.status == Status.PENDING:
                    result.kept.append(entry)
            else:
                late.append(entry)
                if not isinstance(result.stamped_wrong, ClockDrift):
                    result.stamped_wrong = error
        self._acknowledge(accepted, receipt.server_hlc)
        result.accepted = len(accepted)
        self.file.quarantine(result.quarantined)
        self.file.outbox.mark_pending([*result.kept, *late])
        self.file.outbox.mark_late(unsure)
        if late:
            result.restamped = self._restamp(batch, late, result, receipt.server_time_ms)
        return result

    def _is_final(self, entry: Entry, error: LakeSyncError, at: Stamp) -> bool:
        """Return whether a refusal stays, as of the commit ``at``.

        It does not if the next pull brings the row's delete, and an answer to it.
        """
        if not isinstance(error, RowDeleted):
            return error.retry is Retry.NEVER or isinstance(error, TableNotDeclared)
        key = (self.file.catalogue.known(entry.delta.table).id, entry.delta.row_id)
        known = self.file.rows.one(key).known
        is_read = self.file.position().cursor >= at or not (known.alive or known.columns)
        return entry.delta.op is not Op.UPDATE or is_read

    def _acknowledge(self, entries: list[Entry], by: Stamp) -> None:
        file = self.file
        # An entry may no longer exist: another process shares the file, or an echo came first.
        deltas = file.outbox.known(entry.delta for entry in entries)
        file.clock.accepted(max((delta.hlc for delta in deltas), default=0))
        unread = Unread(file)
        ruled = ruled_tables(file)
        for table_id, written in file.rows.grouped(deltas).items():
            # The first page that shows a stale row replaces it, and that page may be older than
            # these edits: so they stay in the outbox until everything has been read.
            for (row_id,) in file.rows.select("row_id FROM _lakesync_stale", table_id, written):
                file.outbox.hold_back(written.pop(row_id))
            stored = file.rows.load(table_id, written)
            unread.accepted(file.catalogue.by_id(table_id), written, stored, by)
            if table_id in ruled:
                self.pending_echo.note(table_id, written, stored, by)
            file.rows.acknowledge(table_id, written, stored)
            file.outbox.remove(delta.hlc for row in written.values() for delta in row)

    def _restamp(self, batch: Batch, late: list[Entry], result: BatchResult, server_ms: int) -> int:
        """Stamp refused entries and all later ones again, in their order; returns their number."""
        file = self.file
        start = _start(batch, late[0])
        if isinstance(result.stamped_wrong, ClockDrift):
            # The clock cannot be reset below what is set aside, so that is stamped again too.
            ahead = file.outbox.first_aside(
                stamp(server_ms + DRIFT_MS_MAX), stamp(server_ms + UNDER_WAY_MS_MAX)
            )
            taken = file.outbox.take_from(min(start, ahead or start))
            file.clock.step_back()
        else:
            # Of tables of events, what may have arrived stays as it is.
            events = {file.catalogue.known(entry.delta.table).id for entry in late}
            taken = file.outbox.take_from(start, events)
        groups: dict[int, int] = {}
        stamps: list[tuple[Stamp, Stamp]] = []
        keys: list[LocalKey] = []
        for entry, rest in taken:
            old = entry.delta
            hlc = file.clock.now()
            delta = known_delta(old.op, old.table, old.row_id, old.client_id, hlc, old.columns)
            txn = None if entry.txn is None else groups.setdefault(entry.txn, hlc)
            file.outbox.put_back(entry._replace(txn=txn), rest, delta)
            keys.append(file.key_of(old))
            stamps.append((old.hlc, hlc))
        file.rows.refold(dict.fromkeys(keys))
        file.actions.edits_restamped(stamps)
        file.conflicts.stamped_again(zip(keys, stamps, strict=True))
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
            f"with {len(refused)} refused; nothing is treated as accepted: push again"
        )
    return refused


def _late_but_maybe_stored(entry: Entry, error: LakeSyncError) -> bool:
    # If an earlier push of the entry got no answer, it may be late because the gateway already has
    # it. Stamped again, it would be two events. The next pull decides (`Outbox.settle_doubts`): an
    # entry that is late now cannot arrive any more.
    return isinstance(error, OutOfOrder) and entry.status in IN_DOUBT


def _stored_before_restore(entry: Entry, error: LakeSyncError) -> bool:
    # The gateway accepts a client's events in the order of their stamps. So an event that was
    # accepted once, and is late for the restored buffer, is from before the restored moment: the
    # buffer has it. (Unless the backup split the lanes of its push: then it is `Status.LOST`.)
    return isinstance(error, OutOfOrder) and entry.status == Status.OFFERED


def _future_but_maybe_in_flight(entry: Entry, error: LakeSyncError, server_ms: int) -> bool:
    # An unanswered push may have reached a function with a faster clock, or may still be in flight.
    # Stamped again, the edit could be two events: so it waits until its time has come, and is then
    # recognised if the gateway has it. If its stamp is so far ahead that no push can still be in
    # flight by then, the gateway will never have it.
    ahead_ms = stamp_ms(entry.hlc) - server_ms
    drifted = isinstance(error, ClockDrift) and entry.status != Status.PENDING
    return drifted and ahead_ms <= UNDER_WAY_MS_MAX


def _sort_out(entry: Entry, error: LakeSyncError, result: BatchResult, *, is_final: bool) -> None:
    if isinstance(error, AtomicPushRefused):
        result.kept.append(entry)
    elif isinstance(error, AtomicPushTooLarge):
        result.kept.append(entry)
        result.refused = error
    elif is_final:
        result.quarantined.append((entry, error))
    else:
        result.kept.append(entry)
        result.blocked = error


def _start(batch: Batch, first: Entry) -> Stamp:
    """Return where stamping again begins: at the first edit of the first refused transaction."""
    whole = [entry for entry in batch.entries if first.txn and entry.txn == first.txn]
    return min(entry.hlc for entry in [first, *whole])
