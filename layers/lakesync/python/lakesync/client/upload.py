"""Pushing: batch after batch, smaller ones if one is refused as a whole, and what receipts change.

Rules of this module
    1. The database's lock is never held while waiting for the network.
    2. A push that is refused as a whole is halved. An edit, or a local transaction, that is refused
       alone is quarantined; but, except for its size, only if the gateway then accepts an empty
       push. If it does not, this client is refused, and none of its edits is the cause.
    3. An answer that is not the gateway's decides nothing about an edit. If the gateway accepts an
       empty push meanwhile, the push is halved too; what is stopped alone is noted, and waits while
       all others go on.
    4. An entry leaves the outbox only when a receipt, or an echo in a page, shows that the gateway
       has it. A receipt whose count does not add up is invalid.
    5. Nothing is stamped again while an earlier push of it may have arrived, or may yet arrive.
       Stamping again takes the refused entry and every later one, so that this client's edits keep
       their order; then the rows concerned are merged again without the old stamps.
    6. All of a receipt is applied in one transaction.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Final

from lakesync.client.resync import Resyncer
from lakesync.client.storage.outbox import (
    BATCH_DELTAS_MAX,
    IN_DOUBT,
    Batch,
    Status,
    next_batch,
    stopped_batch,
)
from lakesync.client.storage.own_writes import PendingEcho, Unread, ruled_tables
from lakesync.client.storage.stored_rows import NOT_STORED
from lakesync.core.clock import DRIFT_MS_MAX, stamp, stamp_ms
from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import fold
from lakesync.core.messages import OutcomeKind, Push
from lakesync.errors import (
    AtomicPushRefused,
    AtomicPushTooLarge,
    BodyTooLarge,
    ClockDrift,
    CursorExpired,
    Forbidden,
    InternalError,
    InvalidInput,
    LakeSyncError,
    NotTheGateway,
    OutOfOrder,
    Retry,
    RowDeleted,
    TableNotDeclared,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.client.client_status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.outbox import Entry
    from lakesync.client.storage.stored_rows import LocalKey, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import Transport

# --- when stopped edits are pushed again ----------------------------------------------------------


STOPPED_MS_MIN: Final = 15_000
"""How long an edit waits that something on the way stops, while others go on; doubled each time."""
STOPPED_MS_MAX: Final = 300_000
"""The longest such wait, unless the app syncs after `SyncLoop.wake`."""


class Stopped:
    """Spaces the tries, each of which costs requests: not kept over restarts."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._wait_ms = 0
        self._since_ms = 0

    def is_due(self) -> bool:
        """Return whether it is time to try again; also when the clock was set back."""
        return not 0 <= self._now_ms() - self._since_ms < self._wait_ms

    def tried(self, number: int) -> None:
        """Note that all of them were tried, and how many were stopped again."""
        doubled_ms = min(max(STOPPED_MS_MIN, 2 * self._wait_ms), STOPPED_MS_MAX)
        self._wait_ms = doubled_ms if number else 0
        self._since_ms = self._now_ms()

    def hurry(self) -> None:
        """Let them be tried at once: the network may be another one."""
        self._wait_ms = 0


# --- receipts -------------------------------------------------------------------------------------


UNDER_WAY_MS_MAX: Final = 120_000
"""How long a push that was given up may still arrive somewhere."""


@dataclass(slots=True)
class BatchResult:
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
        """Return whether a refusal stays, also when the row's delete is pulled (commit ``at``)."""
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
                self._leave_shown(table_id, written, stored)
            file.rows.acknowledge(table_id, written, stored)
            file.outbox.remove(delta.hlc for row in written.values() for delta in row)

    def _leave_shown(
        self, table_id: int, written: dict[str, list[Delta]], stored: Mapping[str, StoredRow]
    ) -> None:
        """Take out what a page has shown of accepted edits: it is not merged again.

        Rules may omit some of its columns, which is all that the page was without.
        """
        bases: dict[LocalKey, RowState] = {}
        for row_id, deltas in list(written.items()):
            known = stored.get(row_id, NOT_STORED).known
            me = self.file.client_id
            shown = {hlc for hlc, client_id, _ in known.columns.values() if client_id == me}
            if any(delta.hlc in shown for delta in deltas):
                rest = [delta for delta in deltas if delta.hlc not in shown]
                bases[table_id, row_id] = fold(rest, known)
                self.file.outbox.remove(delta.hlc for delta in written.pop(row_id))
        self.file.rows.refold(bases)

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


# --- pushing --------------------------------------------------------------------------------------


RESTAMPS_MAX: Final = 3
"""How often one push stamps again before it reports the refusal instead."""


@dataclass(frozen=True, slots=True)
class PushSummary:
    """What a push did."""

    accepted: int = 0
    """Deltas that the gateway holds now, duplicates too."""
    quarantined: int = 0
    """Deltas that were refused and wait for the app."""
    restamped: int = 0
    """Deltas that were stamped again, as the clock was wrong or they came late."""
    ungrouped: int = 0
    """Local transactions too large for one commit, whose edits went one by one."""
    stopped: int = 0
    """Deltas that somebody on the way to the gateway stops; they wait, while others go on."""

    def __add__(self, other: PushSummary) -> PushSummary:
        return PushSummary(*map(add, astuple(self), astuple(other)))


@dataclass(slots=True)
class _Pace:
    """What one call of `Pusher.push` remembers from batch to batch."""

    units_max: int = BATCH_DELTAS_MAX
    """Local transactions and single edits of the next batch, at most."""
    restamps: int = 0
    """Pushes in a row that ended in stamping again."""
    tries_stopped: bool = True
    """It is time to try edits again that were stopped on their way."""
    tried: set[Stamp] = field(default_factory=set)
    """Those that were stopped in this call."""
    is_open: bool = False
    """The gateway itself has answered an empty push, so the network lets through to it."""

    def go_on(self, result: BatchResult) -> None:
        """Stop where pushing on would only repeat the same."""
        if result.blocked is not None:
            raise result.blocked
        if result.stamped_wrong is not None:
            self.restamps += 1
            if self.restamps > RESTAMPS_MAX:
                raise result.stamped_wrong
            return
        self.restamps = 0
        self.units_max = min(2 * self.units_max, BATCH_DELTAS_MAX)
        if not result.accepted and not result.quarantined:
            raise InternalError(
                "the gateway refused a whole push and named no delta; push again later"
            )


class Pusher:
    """Pushes the outbox of one client."""

    def __init__(self, file: ClientFile, transport: Transport, activity: Activity) -> None:
        self._file = file
        self._activity = activity
        self._transport = transport
        self._receipts = Receipts(file)
        self.stopped = Stopped(file.clock.device_ms)
        self.last_commit: Stamp = 0
        """The gateway's latest commit by receipts; a pull reaches it."""

    def push(self, stopped: Callable[[], bool]) -> PushSummary:
        """Push until nothing waits, or until stopped; an error's ``done`` is what was pushed."""
        done = PushSummary()
        pace = _Pace(tries_stopped=self.stopped.is_due())
        try:
            while not stopped() and (batch := self._leave(pace)) is not None:
                result = self._exchange(batch)
                done += PushSummary(result.accepted, len(result.quarantined), result.restamped)
                if result.refused is None:
                    pace.go_on(result)
                else:
                    done += self._cut(batch, result.refused, pace)
        except LakeSyncError as error:
            error.done = done
            raise
        if pace.tries_stopped:
            self.stopped.tried(done.stopped)
        return done

    def _leave(self, pace: _Pace) -> Batch | None:
        file = self._file
        with file.database.lock:
            again = pace.tries_stopped and file.outbox.has_stopped(pace.tried)
            if file.outbox.is_empty() and not again:
                return None
            with file.database.transaction():
                if Resyncer(file).delays_pushes:
                    raise CursorExpired("the buffer was restored; pull to the end, then push again")
                batch = next_batch(file.outbox, pace.units_max)
                if batch is None and again:
                    batch = stopped_batch(file.outbox, pace.units_max, pace.tried)
                if batch is None:
                    return None
                file.outbox.mark_sent(batch.entries)
                at = file.position()
                return replace(batch, epoch=at.epoch or None)

    def _exchange(self, batch: Batch) -> BatchResult:
        """Push a batch and apply its receipt, if it is answered with one."""
        if batch.is_hopeless:
            return BatchResult(
                refused=AtomicPushTooLarge("the transaction is larger than any push")
            )
        deltas = tuple(enumerate(entry.delta for entry in batch.entries))
        sent_ms = self._file.clock.device_ms()
        try:
            with self._activity.uploading():
                receipt = self._transport.push(
                    Push(self._file.client_id, deltas, atomic=batch.atomic, epoch=batch.epoch)
                )
        except NotTheGateway as error:
            return BatchResult(refused=error)
        except (InvalidInput, Forbidden) as error:
            if error.retry is not Retry.NEVER:
                raise
            return BatchResult(refused=error)
        received_ms = self._file.clock.device_ms()
        self.last_commit = max(self.last_commit, receipt.server_hlc)
        with self._file.database.transaction():
            self._file.learn_epoch(batch.epoch or "", receipt.epoch)
            self._file.clock.correct(receipt.server_time_ms, sent_ms, received_ms)
            if batch.was_stopped:
                self._file.outbox.unmark_stopped(batch.entries)
            return self._receipts.apply(batch, receipt)

    def _cut(self, batch: Batch, error: LakeSyncError, pace: _Pace) -> PushSummary:
        """Make the next batch smaller than one that was refused as a whole.

        A batch that cannot be made smaller is the cause: a local transaction that is too large is
        pushed edit by edit, anything else is quarantined.
        """
        if error.is_foreign:
            return self._pass_by(batch, error, pace)
        by_size = isinstance(error, AtomicPushTooLarge | BodyTooLarge)
        with self._file.database.transaction():
            # It was answered, so none of them is in doubt for it.
            self._file.outbox.mark_pending(batch.entries)
            if batch.units > 1:
                pace.units_max = batch.units // 2
                return PushSummary()
            if by_size and batch.atomic:
                self._file.outbox.ungroup(batch.entries)
                return PushSummary(ungrouped=1)
        if not by_size:
            self._transport.push(Push(self._file.client_id, (), epoch=batch.epoch))
        with self._file.database.transaction():
            self._file.quarantine([(entry, error) for entry in batch.entries])
        pace.units_max = BATCH_DELTAS_MAX
        return PushSummary(quarantined=len(batch.entries))

    def _pass_by(self, batch: Batch, error: LakeSyncError, pace: _Pace) -> PushSummary:
        """Make the next batch smaller than one that did not get through to the gateway.

        What does not get through alone is noted as stopped, and the others go on. All of it may
        have arrived nevertheless, so it counts as sent. Nothing is pushed past edits that return to
        a restored buffer: a later event would make an earlier one late.
        """
        if not pace.is_open or batch.units == 1:
            self._transport.push(Push(self._file.client_id, (), epoch=batch.epoch))
            pace.is_open = True
        if batch.units > 1:
            pace.units_max = batch.units // 2
            return PushSummary()
        if batch.is_returning:
            raise error
        with self._file.database.transaction():
            self._file.outbox.mark_stopped(batch.entries, error)
        pace.units_max = BATCH_DELTAS_MAX
        pace.tried.update(entry.hlc for entry in batch.entries)
        return PushSummary(stopped=len(batch.entries))
