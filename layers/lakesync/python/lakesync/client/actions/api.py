"""`Actions`: effects outside LakeSync, queued beside an app's edits: ``client.actions``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.client.actions.results import LiveAction, QueuedAction, ResultCallback
from lakesync.client.arguments import checked_key
from lakesync.client.live.callbacks import checked_callback
from lakesync.result import Ok, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from lakesync.client.actions.entries import ActionEntry
    from lakesync.client.actions.send import ActionSummary, Sender
    from lakesync.client.live.changes import ChangeFeed
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.actions import ActionDescription
    from lakesync.errors import LakeSyncError

    T = TypeVar("T")

    class _Attempt(Protocol):
        def __call__(self, operation: Callable[[], T]) -> Result[T, LakeSyncError]: ...

    Ended = Result[dict[str, Any], LakeSyncError]

_NOTHING: Final[Mapping[str, Any]] = {}


def _never() -> bool:
    return False


class Actions:
    """The actions of one client. Laws X11-X14: ``docs/spec/actions.md``.

    ::

        queued = client.actions.run("shipping", "ship", {"order": 7}).unwrap()
        queued.result(timeout_s=30)

    All of them are in the table ``_lakesync_actions`` of the client's file, which `Client.query`
    and `Client.watch` can read; its columns are those of `ActionEntry`.
    """

    def __init__(
        self,
        file: ClientFile,
        feed: ChangeFeed,
        sender: Sender,
        attempt: _Attempt,
        wake: Callable[[], None],
    ) -> None:
        self._file = file
        self._feed = feed
        self._sender = sender
        self._attempt = attempt
        self._wake = wake

    def run(
        self,
        connector: str,
        action: str,
        params: Mapping[str, Any] = _NOTHING,
        *,
        idempotency_key: str = "",
        after_edits: bool = True,
        on_result: Callable[[Ended], object] | None = None,
    ) -> Result[QueuedAction, LakeSyncError]:
        """Queue an action; it is on the disk when this returns, and the next sync sends it.

        Args:
            connector: the name of the action handler that runs it.
            action: the name of the action.
            params: a JSON object; the gateway checks it against the action's schema.
            idempotency_key: actions of this client with the same key are one.
            after_edits: send it only after the gateway has accepted the edits made so far, so that
                the action handler can read them. If one of them is refused, the action becomes a
                dead letter with ``EDIT_REFUSED``, and is not sent.
            on_result: called once, on a thread of its own, with the result of
                `QueuedAction.result`; not after a restart: then use `find`.
        """
        result = self._queued(
            lambda: self._file.actions.add(
                connector, action, params, idempotency_key, after_edits=after_edits
            ),
            on_result,
        )
        return heard(result, f"action {action!r} of {connector!r}")

    def _queued(
        self, add: Callable[[], ActionEntry], on_result: Callable[[Ended], object] | None
    ) -> Result[QueuedAction, LakeSyncError]:
        def queue() -> QueuedAction:
            with self._file.database.transaction():
                entry = add()
            return self._handle(entry.action_id)

        if on_result is not None:
            checked_callback(on_result)  # before it is queued: who is refused asks again
        result: Result[QueuedAction, LakeSyncError] = self._attempt(queue)
        if isinstance(result, Ok):
            if on_result is not None:
                reading = LiveAction(self._file.database, result.value.action_id)
                ResultCallback(self._feed, on_result, reading)
            self._wake()
        return result

    def _handle(self, action_id: str) -> QueuedAction:
        return QueuedAction(action_id, self._file.database, self._feed)

    def find(self, action_id: str) -> Result[QueuedAction, LakeSyncError]:
        """Return a queued action, also after a restart; ``NOT_FOUND`` if it no longer exists."""
        result = self._attempt(lambda: self._handle(checked_key(action_id, "action_id")))
        return result.and_then(lambda handle: handle.entry().map(lambda _: handle))

    def pending(self) -> Result[list[ActionEntry], LakeSyncError]:
        """Return the actions that have not ended, oldest first."""
        return self._attempt(lambda: self._file.listed_actions(dead=False))

    def dead_letters(self) -> Result[list[ActionEntry], LakeSyncError]:
        """Return the actions that failed or whose outcome is unknown, oldest first."""
        return self._attempt(lambda: self._file.listed_actions(dead=True))

    def retry(
        self,
        action_id: str,
        *,
        idempotency_key: str = "",
        after_edits: bool = True,
        on_result: Callable[[Ended], object] | None = None,
    ) -> Result[QueuedAction, LakeSyncError]:
        """Queue a dead letter again as a new action, with another id; as `run`.

        If the dead letter ended with ``UNKNOWN_OUTCOME``, check first whether it was done. Its old
        key would return the old outcome again, so the new action has no key unless one is given.
        """
        result = self._queued(
            lambda: self._file.actions.retry(
                checked_key(action_id, "action_id"), idempotency_key, after_edits=after_edits
            ),
            on_result,
        )
        return heard(result, f"retry of the action {action_id!r}")

    def discard(self, action_id: str) -> Result[ActionEntry, LakeSyncError]:
        """Remove an action from the queue; one that was sent may nevertheless be done."""

        def discard() -> ActionEntry:
            with self._file.database.transaction():
                return self._file.actions.discard(checked_key(action_id, "action_id"))

        return heard(self._attempt(discard), f"discard of the action {action_id!r}")

    def clear(self) -> Result[int, LakeSyncError]:
        """Remove all actions that have not ended, and all dead letters; returns their number.

        One that was sent may nevertheless be done.
        """

        def clear() -> int:
            with self._file.database.transaction():
                return self._file.actions.clear()

        return heard(self._attempt(clear), "clear of the actions")

    def send(self, *, stopped: Callable[[], bool] = _never) -> Result[ActionSummary, LakeSyncError]:
        """Send the actions that are ready, until none is; `Client.sync` does it too."""
        return self._attempt(lambda: self._sender.send(stopped))

    def discover(self) -> Result[dict[str, list[ActionDescription]], LakeSyncError]:
        """Ask the gateway which actions this client may run, by the names of their handlers."""
        return self._attempt(self._sender.discover)

    def due_s(self) -> float | None:
        """Get in how many seconds the next retry of an action is due; None if none is waiting."""

        def due() -> int | None:
            with self._file.database.lock:
                return self._file.actions.due_ms()

        due_ms = self._attempt(due).unwrap_or(None)
        return None if due_ms is None else due_ms / 1000
