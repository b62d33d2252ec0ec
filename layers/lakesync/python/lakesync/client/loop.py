"""`SyncLoop`: background sync, soon after edits, with backoff while there is no network.

Rules of this module
    1. The thread ends only when it is stopped. An exception in a sync is reported as an ``Err``; an
       exception in the app's ``on_result`` is logged.
    2. `SyncLoop.wake` and `SyncLoop.stop` end every wait early.
    3. As a part of a client (`Connecting`) a loop ends with the client. A broadcast that fits the
       client's cursor is applied; after any other the client pulls.

Law T1: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lakesync.client.app_attachments import BackgroundUploads
from lakesync.client.change_feed import checked_callback
from lakesync.client.client_status import Observable
from lakesync.client.storage.misuse import checked_interval_s, checked_mode, checked_waits
from lakesync.client.sync import SyncSummary
from lakesync.client.waits import BACKOFF_S_MIN, WAITS, own_addresses, wait_here
from lakesync.errors import (
    InternalError,
    LakeSyncError,
    NotTheGateway,
    TransactionOpen,
    Unreachable,
    ValidationFailed,
)
from lakesync.ports import DropsRequests, Listens
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lakesync.client.app_actions import Actions
    from lakesync.client.app_attachments import Attachments
    from lakesync.client.client_status import Activity
    from lakesync.client.storage.misuse import Mode
    from lakesync.client.sync import Syncer
    from lakesync.client.waits import Waits
    from lakesync.ports import Listening, Transport

# --- what is synced -------------------------------------------------------------------------------


class Syncs(Protocol):
    """A `Client`."""

    actions: Actions
    attachments: Attachments
    edited: threading.Event

    @property
    def connected(self) -> bool: ...

    def sync(
        self, *, stopped: Callable[[], bool], mode: Mode = "full"
    ) -> Result[SyncSummary, LakeSyncError]: ...

    def listen(self, wake: Callable[[], None], waits: Waits = ...) -> Listening | None: ...

    def register_loop(self, loop: Any) -> None: ...

    def hurry(self) -> None: ...

    def drop_requests(self) -> None: ...


class HasClient(Protocol):
    """An `AsyncClient`."""

    @property
    def client(self) -> Syncs: ...


# --- the loop -------------------------------------------------------------------------------------


GATHER_S: Final = 0.2
"""How long edits must pause before they are pushed: longer than the time between two keystrokes."""
GATHER_S_MAX: Final = 1.0
"""The longest that edits which do not pause wait for each other."""
CONNECTED_EVERY_S: Final = 7_200.0
"""How often a client with a WebSocket looks for news all the same. Its listener asks more often,
and wakes the loop if anything was missed, and with each connection that replaces another.
"""
EVERY_S: Final = 30.0
"""How often a client without one looks for news, by default."""
STOP_S: Final = 2.0
"""How long a stop waits, by default, for the request in flight before dropping it."""
_DROPPED_S: Final = 1.0
"""How long a dropped request may take to end; a connection that is being opened takes longer."""
_SPREAD: Final = 0.2
"""The jitter of the wait between polls, as a fraction, so that clients started together spread out.
"""

_log = logging.getLogger("lakesync.client")


def unheard(_result: Result[SyncSummary, LakeSyncError]) -> None: ...


class SyncLoop:
    """Syncs one client on a thread of its own, until it is stopped or the client is closed.

    ::

        with client.connect(every_s=30):
            run_the_app()

    `Client.connect` creates one and starts it; so does ``with SyncLoop(client):``.

    Args:
        client: the client, or an `AsyncClient`; the app continues to use it.
        every_s: the time between polls, in seconds, plus or minus a tenth, without failures; polls
            are rare while a WebSocket that reports changes is open (`HttpTransport`). Edits are
            pushed when none were made for `GATHER_S`, or `GATHER_S_MAX` after the first. After a
            failure the wait doubles as ``waits`` says, with jitter, and is never shorter than the
            gateway asked for; edits do not shorten it. After an answer that is not the gateway's
            it is at most `FOREIGN_S_MAX`, and an edit ends it. Actions that could not be done are
            retried when they are due. Attachments are uploaded meanwhile.
        mode: as for `Client.sync`. With ``push`` no WebSocket is opened, and nothing is asked for
            while nothing waits. With ``pull`` edits wait, and nothing is uploaded.
        waits: how long it waits after failures, and between two signs of a WebSocket's life.
        on_result: receives each result, on the loop's thread. The ``error.done`` of an ``Err``, a
            `SyncSummary`, states what was pushed and pulled nevertheless. It may call `wake` and
            `stop`.
        chance: a random number in [0, 1).
        monotonic_s: a clock that never goes back, in seconds.
        network: identifies the network that the device is in. While the gateway cannot be reached,
            another one ends the wait, as far as a device can notice that.
    """

    def __init__(
        self,
        client: Syncs | HasClient,
        *,
        every_s: float = EVERY_S,
        mode: Mode = "full",
        waits: Waits = WAITS,
        on_result: Callable[[Result[SyncSummary, LakeSyncError]], object] = unheard,
        chance: Callable[[], float] = random.random,
        monotonic_s: Callable[[], float] = time.monotonic,
        network: Callable[[], object] | None = own_addresses,
    ) -> None:
        inner: Any = client
        self._client: Syncs = getattr(inner, "client", inner)
        self._every_s = checked_interval_s(every_s, "every_s")
        self._mode = checked_mode(mode)
        self._waits = checked_waits(waits)
        self._on_result = checked_callback(on_result)
        self._chance = chance
        self._monotonic_s = monotonic_s
        self._network = network
        self._failures = 0
        self._starting = threading.Lock()
        self._woken = threading.Event()
        self._due = self._woken if mode == "pull" else self._client.edited
        """Set when there is a reason to sync at once."""
        self._stopped = threading.Event()
        """The stop event of the latest run: each has its own, so that one may begin while another
        ends.
        """
        self._thread: threading.Thread | None = None
        self._listening: Listening | None = None
        self._uploads = BackgroundUploads(
            self._client.attachments,
            lambda error, failures: waits.backoff_s(error, failures, chance()),
        )

    def start(self) -> None:
        """Begin syncing, for the first time or after `stop`; safe to repeat.

        Raises:
            ValidationFailed: the client is closed.
        """
        with self._starting:
            if self.is_running():
                return
            self._client.register_loop(self)
            is_told = self._mode != "push"
            self._listening = self._client.listen(self.wake, self._waits) if is_told else None
            self._failures = 0
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopped,), name="lakesync", daemon=True
            )
            self._thread.start()

    def is_running(self) -> bool:
        """Return whether it was started, and not stopped since."""
        is_alive = self._thread is not None and self._thread.is_alive()
        return is_alive and not self._stopped.is_set()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End, and wait for that; safe to repeat.

        The request in flight may take up to that long to end. Then the transport drops it, if it
        can, together with requests of others that share the transport; unanswered requests are
        repeated later. When ``on_result`` calls this, it does not wait: the loop ends after
        ``on_result`` returns.
        """
        with self._starting:
            self._stopped.set()
            thread = self._thread
            listening, self._listening = self._listening, None
        self.wake()
        if listening is not None:
            listening.stop()
        if thread is not None and thread is not threading.current_thread():
            for wait_s, then in ((timeout_s, self._client.drop_requests), (_DROPPED_S, _give_up)):
                until_s = time.monotonic() + wait_s
                thread.join(wait_s)
                if self._uploads.join(until_s - time.monotonic()) and not thread.is_alive():
                    return
                then()

    def wake(self) -> None:
        """Sync now, as after the network returns, the app opens, or a push message arrives."""
        self._client.hurry()
        self._woken.set()
        self._client.edited.set()

    def _run(self, stopped: threading.Event) -> None:
        while True:
            # Cleared before the sync, not after: an edit made during the sync needs another round.
            self._woken.clear()
            self._client.edited.clear()
            if stopped.is_set():
                self.wake()  # the event that was cleared may be meant for the next run
                return
            if self._mode != "pull":
                self._uploads.start(stopped)
            network = self._network() if self._network else None
            result = self._sync(stopped)
            try:
                self._on_result(result)
            except Exception:  # noqa: BLE001 - the app's code; see rule 1
                _log.exception("on_result raised; syncing goes on")
            match result:
                case Ok():
                    self._failures = 0
                    self._wait_for_edits()
                case Err(error):
                    self._failures += 1
                    self._wait_after(error, network)

    def _sync(self, stopped: threading.Event) -> Result[SyncSummary, LakeSyncError]:
        try:
            return self._client.sync(stopped=stopped.is_set, mode=self._mode)
        except Exception as exc:  # noqa: BLE001 - see rule 1
            _log.exception("a sync raised; it is tried again later")
            error = InternalError(f"the sync ended with {type(exc).__name__}: {exc}; report it")
            error.done = SyncSummary()
            error.__cause__ = exc
            return Err(error)

    def _wait_after(self, error: LakeSyncError, network: object) -> None:
        # Edits do not shorten the wait, as they would fare like the last ones; but whoever works on
        # may have logged in.
        is_login = isinstance(error, NotTheGateway)
        event, wait_s = self._due if is_login else self._woken, self.backoff_s(error)
        if error.is_foreign or isinstance(error, Unreachable):
            is_set = wait_here(event, wait_s, network, self._network)
        else:
            is_set = event.wait(wait_s)
        if is_set and is_login:
            self._gather()

    def _wait_for_edits(self) -> None:
        """Wait for an edit and the end of its burst, or until it is time to poll."""
        edited = self._due
        waited_s = 0.0
        while True:
            wait_s = self._every_s * (1 + _SPREAD * (self._chance() - 0.5))
            due_s = self._client.actions.due_s() if self._mode != "pull" else None
            if due_s is not None and due_s < wait_s:
                if not edited.wait(max(due_s, BACKOFF_S_MIN)):
                    return
                break
            if edited.wait(wait_s):
                break
            waited_s += wait_s
            if not self._client.connected or waited_s >= CONNECTED_EVERY_S:
                return
        self._gather()

    def _gather(self) -> None:
        """Wait for the end of a burst of edits."""
        edited = self._client.edited
        until_s = self._monotonic_s() + GATHER_S_MAX
        while (left_s := until_s - self._monotonic_s()) > 0:
            edited.clear()
            if self._woken.is_set() or not edited.wait(min(GATHER_S, left_s)):
                return

    def backoff_s(self, error: LakeSyncError) -> float:
        """Return how long to wait after a failure; random, so that clients spread out."""
        return self._waits.backoff_s(error, self._failures, self._chance())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


def _give_up() -> None:
    _log.info("what syncs has not ended yet: it ends behind its request, and changes nothing more")


# --- received changes -----------------------------------------------------------------------------


class Hearing:
    """`lakesync.ports.Hearer` for one client, whose syncer applies what is heard."""

    def __init__(
        self,
        client_id: str,
        syncer: Syncer,
        activity: Activity,
        wake: Callable[[], None],
        waits: Waits = WAITS,
    ) -> None:
        self.client_id = client_id
        self._activity = activity
        self.wake = wake
        self.hear, self.reads_again = syncer.hear, syncer.reads_again
        self.next_pull, self.is_current = syncer.next_pull, syncer.is_current
        self.heartbeat_s = waits.heartbeat_s
        self.reconnect_s = waits.reconnect_s
        self.reconnect_s_max = waits.reconnect_s_max

    def on_connected(self, *, is_open: bool, reason: str | None = None) -> None:
        self._activity.hears(is_open=is_open, reason=reason)


# --- a loop as a part of a client -----------------------------------------------------------------


class Connecting(Observable):
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
        """Listen for changes if the transport can: `SyncLoop` calls it. Stop it before `close`."""
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
