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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.client.download.apply import grouped_deltas
from lakesync.client.download.position import NOTHING_READ, advancing
from lakesync.client.storage.failures import attempt
from lakesync.client.summaries import PullSummary, PushSummary, SyncSummary
from lakesync.core.messages import SNAPSHOT, Pull, PullPage
from lakesync.errors import (
    CursorExpired,
    InvalidCursor,
    LakeSyncError,
    OutOfOrder,
    ValidationFailed,
)
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.download.apply import Pages
    from lakesync.client.download.position import Position
    from lakesync.client.recovery.resync import Resyncer
    from lakesync.client.storage.database import Database
    from lakesync.client.storage.schemas import KnownSchemas
    from lakesync.client.upload.outbox import Outbox
    from lakesync.client.upload.push import Pusher
    from lakesync.ports import Transport

S = TypeVar("S", PushSummary, PullSummary)

ROUNDS_MAX: Final = 10
"""How often one sync goes round, while other threads keep editing."""
PAGE_DELTAS: Final = 5_000
"""Deltas of one page, by default."""
PAGE_DELTAS_MAX: Final = 10_000
"""Deltas of one page that may be asked for; no gateway gives more."""


def never() -> bool:
    """Tell that nothing asks a sync to stop."""
    return False


@dataclass
class Syncer:
    """Moves deltas both ways for one client."""

    _client_id: str
    _transport: Transport
    _database: Database
    _outbox: Outbox
    _pusher: Pusher
    _pages: Pages
    _resync: Resyncer
    _schemas: KnownSchemas
    _page_deltas: int
    # One push or pull at a time, so that the file is as it was when the gateway was asked.
    _turn: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        if not 1 <= self._page_deltas <= PAGE_DELTAS_MAX:
            raise ValidationFailed(
                f"page_deltas must be 1 to {PAGE_DELTAS_MAX}, not {self._page_deltas}",
                field="page_deltas",
            )

    def sync(self, stopped: Callable[[], bool]) -> SyncSummary:
        """Push and pull until nothing waits and nothing is new.

        A half that fails does not keep the other from happening.

        Args:
            stopped: asked between two requests; ends the sync when it is true.

        Raises:
            LakeSyncError: why something must wait, once all else is done; its ``done`` tells of
                both halves.
        """
        self._database.must_be_idle()
        done = SyncSummary()
        with self._turn:
            for _ in range(ROUNDS_MAX):
                pushed, push_error = _half(lambda: self.push(stopped), PushSummary())
                pulled, pull_error = _half(lambda: self.pull(stopped), PullSummary())
                done = SyncSummary(
                    done.pushed + pushed, done.pulled + pulled, push_error, pull_error, stopped()
                )
                # The pull has told which late deltas had arrived after all: those go on. So does
                # what waited for another buffer to be read.
                may_go_on = push_error is None or isinstance(push_error, OutOfOrder | CursorExpired)
                if done.stopped or pull_error is not None or not may_go_on:
                    break
                if push_error is None and self._is_quiet():
                    break
        error = done.error
        if error is not None:
            error.done = done
            raise error
        return done

    def push(self, stopped: Callable[[], bool] = never) -> PushSummary:
        """Push until nothing waits; see `Pusher.push`."""
        self._database.must_be_idle()
        with self._turn:
            return self._pusher.push(stopped)

    def pull(self, stopped: Callable[[], bool] = never) -> PullSummary:
        """Pull to the end, or until it is told to stop.

        Raises:
            LakeSyncError: why the rest must wait; its ``done`` tells what is applied.
        """
        self._database.must_be_idle()
        done = PullSummary()
        try:
            with self._turn:
                while not stopped():
                    with self._database.lock:
                        at = self._pages.position()
                    page, rebuilt = self._fetch(at)
                    if not self._take(page, at, rebuilt=rebuilt):
                        continue
                    done += PullSummary(1, page.count, rebuilt or at.scope not in {"", page.scope})
                    if not page.has_more:
                        self._schemas.follow(page)
                        break
        except LakeSyncError as error:
            error.done = done
            raise
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
                self._resync.start(is_restored=page.epoch != at.epoch or at.shows_as(page))
            self._pages.apply(page, grouped)
        return True

    def _is_quiet(self) -> bool:
        with self._database.lock:
            return self._outbox.is_empty()

    def _fetch(self, at: Position) -> tuple[PullPage, bool]:
        """Fetch the next page; if the position means nothing any more, the first one of all.

        Tells too whether everything must be read again: the page is of another buffer than before,
        not of the same one with its oldest log trimmed; or other rules or claims decided.
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


def _half(half: Callable[[], S], nothing: S) -> tuple[S, LakeSyncError | None]:
    """Do a half of a sync; gives what was done, and why not all of it was."""
    result = attempt(half)
    if isinstance(result, Ok):
        return result.value, None
    return result.error.done or nothing, result.error
