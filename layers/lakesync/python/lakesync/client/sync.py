"""Push and pull: the outbox to the gateway, the gateway's pages to the rows.

Rules of this module
    1. The database's lock is never held while the network is waited for.
    2. A push never moves the read cursor; a page moves it in the transaction that applies the page.
    3. Whatever goes wrong, every edit is either in the outbox or known to be at the gateway. All
       of it is safe to repeat, from any thread, after any crash.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.client.download.apply import grouped_deltas
from lakesync.client.download.position import NOTHING_READ, advancing
from lakesync.client.summaries import PullSummary, PushSummary, SyncSummary
from lakesync.client.upload.batches import Batch, next_batch
from lakesync.client.upload.pace import Pace
from lakesync.client.upload.receipts import Settled
from lakesync.core.messages import SNAPSHOT, Pull, PullPage, Push
from lakesync.errors import (
    AtomicPushTooLarge,
    BodyTooLarge,
    CursorExpired,
    InvalidCursor,
    LakeSyncError,
    OutOfOrder,
)

if TYPE_CHECKING:
    from lakesync.client.download.apply import Pages
    from lakesync.client.download.position import Position
    from lakesync.client.recovery.resync import Rebuild
    from lakesync.client.storage.database import Database
    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.client.storage.schemas import KnownSchemas
    from lakesync.client.upload.outbox import Outbox
    from lakesync.client.upload.receipts import Settler
    from lakesync.ports import Transport

ROUNDS_MAX: Final = 10
"""How often one sync goes round, while other threads keep editing."""
_READ_FIRST: Final = "the buffer was restored from a backup; pull to the end, then push again"


class Syncer:
    """Moves deltas both ways for one client."""

    def __init__(
        self,
        *,
        client_id: str,
        transport: Transport,
        database: Database,
        outbox: Outbox,
        settler: Settler,
        pages: Pages,
        rebuild: Rebuild,
        schemas: KnownSchemas,
        clock: DeviceClock,
        page_deltas: int,
    ) -> None:
        self._client_id = client_id
        self._transport = transport
        self._database = database
        self._outbox = outbox
        self._settler = settler
        self._pages = pages
        self._rebuild = rebuild
        self._schemas = schemas
        self._clock = clock
        self._page_deltas = page_deltas
        # One push or pull at a time: a receipt or a page is settled against what it answers.
        self._turn = threading.RLock()

    def sync(self) -> SyncSummary:
        """Push and pull until nothing waits and nothing is new.

        A push that must wait does not keep the pull from happening.

        Raises:
            LakeSyncError: why something must wait, once all else is done.
        """
        self._database.must_be_idle()
        pushed, pulled = PushSummary(), PullSummary()
        failure: LakeSyncError | None = None
        with self._turn:
            for _ in range(ROUNDS_MAX):
                failure = None
                try:
                    pushed += self.push()
                except LakeSyncError as error:
                    failure = error
                pulled += self.pull()
                # The pull has told which late deltas had arrived after all: those go on. So does
                # what waited for another buffer to be read.
                if failure is not None and not isinstance(failure, OutOfOrder | CursorExpired):
                    break
                if failure is None and self._is_quiet():
                    break
        if failure is not None:
            raise failure
        return SyncSummary(pushed, pulled)

    def push(self) -> PushSummary:
        """Push until nothing waits.

        Raises:
            LakeSyncError: why something must wait; what was accepted until then is settled.
        """
        self._database.must_be_idle()
        done = PushSummary()
        pace = Pace()
        with self._turn:
            while (batch := self._leave(pace)) is not None:
                settled = self._exchange(batch)
                done += PushSummary(settled.accepted, len(settled.quarantined), settled.restamped)
                if settled.too_large is not None:
                    done += self._shrink(batch, settled.too_large, pace)
                else:
                    pace.go_on(settled)
        return done

    def pull(self) -> PullSummary:
        """Pull to the end.

        Raises:
            LakeSyncError: why it must wait; the pages until then are applied.
        """
        self._database.must_be_idle()
        done = PullSummary()
        with self._turn:
            while True:
                with self._database.lock:
                    at = self._pages.position()
                page, rebuilt = self._fetch(at)
                if not self._take(page, at, rebuilt=rebuilt):
                    continue
                again = rebuilt or at.scope not in {"", page.scope}
                done += PullSummary(1, page.count, again)
                if not page.has_more:
                    self._schemas.follow(page)
                    return done

    def _take(self, page: PullPage, at: Position, *, rebuilt: bool) -> bool:
        """Apply a page; False if another process that shares the file has gone ahead."""
        with self._database.lock:
            if not rebuilt and not self._pages.is_news(page, at):
                return True
        grouped = grouped_deltas(page)
        with self._database.transaction():
            if self._pages.position() != at:
                return False
            if rebuilt:
                # Other rules lose no edit; another buffer may have.
                offers = page.epoch != at.epoch or at.shows_as(page)
                self._rebuild.start(offers=offers)
            self._pages.apply(page, grouped)
        return True

    def _is_quiet(self) -> bool:
        with self._database.lock:
            return self._outbox.is_empty()

    def _leave(self, pace: Pace) -> Batch | None:
        """Choose the next batch and note that it leaves."""
        with self._database.lock:
            if self._outbox.is_empty():
                return None
            with self._database.transaction():
                if self._rebuild.delays_pushes:
                    raise CursorExpired(_READ_FIRST)
                batch = next_batch(self._outbox, pace.deltas_max, alone=pace.alone)
                if batch is None:
                    return None
                self._outbox.mark_sent(batch.entries)
                at = self._pages.position()
                return batch if at.is_new else replace(batch, epoch=at.epoch)

    def _exchange(self, batch: Batch) -> Settled:
        """Push a batch and settle its receipt."""
        if batch.is_hopeless:
            return Settled(too_large=AtomicPushTooLarge("the transaction is larger than any push"))
        deltas = tuple((place, entry.delta) for place, entry in enumerate(batch.entries))
        sent_ms = self._clock.device_ms()
        try:
            receipt = self._transport.push(
                Push(self._client_id, deltas, atomic=batch.atomic, epoch=batch.epoch)
            )
        except (AtomicPushTooLarge, BodyTooLarge) as error:
            return Settled(too_large=error)
        received_ms = self._clock.device_ms()
        with self._database.transaction():
            self._clock.correct(receipt.server_time_ms, sent_ms, received_ms)
            return self._settler.settle(batch, receipt)

    def _shrink(self, batch: Batch, error: LakeSyncError, pace: Pace) -> PushSummary:
        """Make the next batch smaller than one that was refused for its size.

        A local transaction goes alone before it is given up as one: then its edits go one by one.
        A single edit that is too large by itself is quarantined.
        """
        with self._database.transaction():
            # It was answered, so none of them is in doubt for it.
            self._outbox.mark_pending(batch.entries)
            if batch.transactions > 1:
                pace.alone = batch.atomic
                pace.deltas_max = max(1, len(batch.entries) // 2)
                return PushSummary()
            if batch.atomic:
                self._outbox.ungroup(batch.entries)
                return PushSummary(ungrouped=1)
            self._outbox.quarantine((entry, error) for entry in batch.entries)
            return PushSummary(quarantined=1)

    def _fetch(self, at: Position) -> tuple[PullPage, bool]:
        """Fetch the next page; if the position means nothing any more, the first one of all.

        Returns:
            The page, and whether everything that is held has to be read anew: it comes from another
            buffer than before, and not from one that only no longer holds its oldest log; or by
            other rules or claims.
        """
        ask, deltas_max = self._transport.pull, self._page_deltas
        with contextlib.suppress(CursorExpired, InvalidCursor):
            page = ask(at.pull(self._client_id, deltas_max))
            # An epoch is empty until the buffer is restored for the first time. Who has read
            # nothing may still have pushed what a restore lost.
            if at.is_followed_by(page):
                return advancing(page, at), page.epoch != at.epoch
        page = ask(Pull(self._client_id, 0, deltas_max, snapshot=SNAPSHOT, removes=True))
        goes_on = at.is_new or (page.snapshot and at.shows_as(page))
        return advancing(page, NOTHING_READ), not (goes_on and page.epoch == at.epoch)
