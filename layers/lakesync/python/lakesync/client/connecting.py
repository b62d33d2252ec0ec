"""Syncing in the background, as a part of a client: it ends with the client."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, cast

from lakesync.client.backoff import WAITS
from lakesync.client.download.hearing import Hearing
from lakesync.client.live.observing import Observable
from lakesync.client.loop import EVERY_S, SyncLoop, unheard
from lakesync.errors import TransactionOpen, ValidationFailed
from lakesync.ports import DropsRequests, Listens

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.backoff import Waits
    from lakesync.client.modes import Mode
    from lakesync.client.summaries import SyncSummary
    from lakesync.client.sync import Syncer
    from lakesync.client.syncable import Syncs
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Listening, Transport
    from lakesync.result import Result


class Connecting(Observable):
    """The part of a client that keeps it in sync."""

    client_id: str
    _syncer: Syncer
    _transport: Transport

    def _may_connect(self) -> None:
        self._connecting = threading.RLock()
        self._loop: SyncLoop | None = None
        self._loops: weakref.WeakSet[SyncLoop] = weakref.WeakSet()
        self._is_closed = False

    def connect(
        self,
        *,
        every_s: float = EVERY_S,
        mode: Mode = "full",
        waits: Waits = WAITS,
        on_result: Callable[[Result[SyncSummary, LakeSyncError]], object] = unheard,
    ) -> SyncLoop:
        """Sync in the background until the returned loop is stopped or the client is closed.

        If the transport has a ``socket_url``, a WebSocket reports changes immediately; while it
        cannot be opened, the client polls every ``every_s`` seconds. ``status.connected`` shows
        which applies.

        Args:
            every_s: as for `SyncLoop`. If the client is already connected, it restarts with these
                arguments.
            mode: as for `SyncLoop`: ``full``, or one direction, ``push`` or ``pull``.
            waits: as for `SyncLoop`.
            on_result: as for `SyncLoop`.

        Raises:
            ValidationFailed: the client is closed, or an argument is none.
        """
        with self._connecting:
            loop = SyncLoop(
                cast("Syncs", self), every_s=every_s, mode=mode, waits=waits, on_result=on_result
            )
            if self._loop is not None:  # not sooner: what is refused leaves that syncing
                self._loop.stop()
            self._loop = loop
            loop.start()
            return loop

    def listen(self, wake: Callable[[], None], waits: Waits = WAITS) -> Listening | None:
        """Listen for changes if the transport can: `SyncLoop` calls it. Stop it before `close`.

        Args:
            wake: makes this client sync.
            waits: how long the listener waits.
        """
        if not isinstance(self._transport, Listens):
            return None
        hearing = Hearing(self.client_id, self._syncer, self._activity, wake, waits)
        return self._transport.listen(hearing)

    def register_loop(self, loop: SyncLoop) -> None:
        """Note a loop that must be stopped with the client; `SyncLoop.start` calls it."""
        with contextlib.suppress(TransactionOpen):  # refused in a process that was forked
            self._file.database.must_be_idle()
        if self._is_closed:
            raise ValidationFailed("the client is closed; open its file again")
        self._loops.add(loop)

    def hurry(self) -> None:
        """Try at the next sync, however lately it was tried, what was stopped on its way."""
        self._syncer.hurry()

    def drop_requests(self) -> None:
        """Make current requests fail at once, if the transport supports that."""
        if isinstance(self._transport, DropsRequests):
            self._transport.drop_requests()

    def _stop_loops(self) -> list[SyncLoop]:
        running = [loop for loop in list(self._loops) if loop.is_running()]
        for loop in running:
            loop.stop()
        return running
