"""Pushing: batch after batch, and smaller ones if a push is refused as a whole.

Rules of this module
    1. The database's lock is never held while waiting for the network.
    2. A push that is refused as a whole is halved. An edit, or a local transaction, that is refused
       alone is quarantined; but, except for its size, only if the gateway then accepts an empty
       push. If it does not, this client is refused, and none of its edits is the cause.
    3. An answer that is not the gateway's decides nothing about an edit. If the gateway accepts an
       empty push meanwhile, the push is halved too; what is stopped alone is noted, and waits while
       all others go on.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Final

from lakesync.client.recovery.resync import Resyncer
from lakesync.client.upload.batches import BATCH_DELTAS_MAX, Batch, next_batch, stopped_batch
from lakesync.client.upload.receipts import BatchResult, Receipts
from lakesync.client.upload.stopped import Stopped
from lakesync.core.messages import Push
from lakesync.errors import (
    AtomicPushTooLarge,
    BodyTooLarge,
    CursorExpired,
    Forbidden,
    InternalError,
    InvalidInput,
    LakeSyncError,
    NotTheGateway,
    Retry,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.live.status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.clock import Stamp
    from lakesync.ports import Transport

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
        """Push until nothing waits, or until stopped.

        The raised error states why something must wait; its ``done`` states what was pushed.
        """
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
        """Choose the next batch and note that it leaves."""
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
