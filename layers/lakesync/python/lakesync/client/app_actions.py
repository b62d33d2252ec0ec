"""`Actions`: effects outside LakeSync, requested offline, sent when possible, results reported.

They are queued beside an app's edits (`lakesync.client.storage.action_queue`).

Rules of this module
    1. That an action is sent is recorded before it is sent, and its outcome before it is reported.
       So an action that is interrupted at any point is sent again under its id, and the gateway
       returns the same outcome.
    2. The database's lock is never held while waiting for the network.
"""

from __future__ import annotations

import random
import threading
from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.change_feed import (
    EVERYTHING,
    UNCHANGED,
    Callback,
    Reading,
    Watch,
    checked_callback,
)
from lakesync.client.storage.action_queue import COLUMNS, GONE, ActionEntry, ActionStatus
from lakesync.client.storage.misuse import checked_key
from lakesync.client.storage.sqlite_file import SALVAGE, attempt
from lakesync.client.waits import never
from lakesync.core.delta import canonical
from lakesync.core.messages import ACTIONS_MAX, ActionPush, refusal
from lakesync.errors import (
    ActionFailed,
    ActionRunning,
    AnotherGateway,
    BodyTooLarge,
    FileCorrupt,
    LakeSyncError,
    NotFound,
    NotOffered,
    NotTheGateway,
    Unavailable,
    ValidationFailed,
)
from lakesync.ports import RunsActions
from lakesync.result import Err, Ok, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.client.change_feed import ChangeFeed, Changes, Unchanged
    from lakesync.client.client_status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.sqlite_file import Attempt, Database
    from lakesync.core.messages import ActionDescription
    from lakesync.ports import Transport

    Ended = Result[dict[str, Any], LakeSyncError]

# --- sending --------------------------------------------------------------------------------------


REQUEST_BYTES_MAX: Final = 250_000
"""Parameters of one request, unless one action alone has more: seconds on a slow line."""
_UNSEND: Final = (
    "UPDATE _lakesync_actions SET status = 'waiting', attempts = 0, sent_ms = NULL "
    "WHERE action_id = ? AND status = 'sent' AND attempts = 1"
)


@dataclass(frozen=True, slots=True)
class ActionSummary:
    """What sending actions did."""

    done: int = 0
    dead: int = 0
    """Those that ended otherwise, and are dead letters."""
    later: int = 0
    """Those that could not be done now, and are sent again by themselves."""

    def __add__(self, other: ActionSummary) -> ActionSummary:
        return ActionSummary(*map(add, astuple(self), astuple(other)))


class Sender:
    def __init__(
        self,
        file: ClientFile,
        transport: Transport,
        activity: Activity,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._file = file
        self._transport = transport
        self._activity = activity
        self._chance = chance
        self._one_at_a_time = threading.Lock()

    def send(self, stopped: Callable[[], bool]) -> ActionSummary:
        """Send until nothing is ready, or until stopped; what has no answer is sent again."""
        self._file.database.must_be_idle()
        done = ActionSummary()
        number_max = ACTIONS_MAX
        with self._one_at_a_time:
            try:
                while not stopped() and (entries := self._leave(number_max)):
                    summary, number_max = self._exchange(entries)
                    done += summary
            except LakeSyncError as error:
                error.done = done
                self._activity.ended("actions", error)
                raise
        self._activity.ended("actions", None)
        return done

    def discover(self) -> dict[str, list[ActionDescription]]:
        return self._runner().discover_actions()

    def _runner(self) -> RunsActions:
        if not isinstance(self._transport, RunsActions):
            raise NotOffered("this transport runs no actions: use HttpTransport")
        return self._transport

    def _leave(self, number_max: int) -> list[ActionEntry]:
        actions = self._file.actions
        with self._file.database.lock:
            if not actions.too_old() and not actions.ready(1):
                return []
        with self._file.database.transaction():
            actions.end_too_old()
            ready = actions.ready(number_max)
            size = 0
            for number, entry in enumerate(ready):
                size += len(canonical(entry.params))
                if number and size > REQUEST_BYTES_MAX:
                    ready = ready[:number]
                    break
            actions.mark_sent(ready)
            return [actions.get(entry.action_id) for entry in ready]

    def _exchange(self, entries: list[ActionEntry]) -> tuple[ActionSummary, int]:
        """Send actions and note their outcomes; tells too how many may go next."""
        client_id = self._file.client_id
        with self._file.database.lock:
            epoch = self._file.position().epoch
        push = ActionPush(client_id, tuple(entry.to_send(client_id) for entry in entries), epoch)
        try:
            with self._activity.uploading():
                answers = self._runner().run_actions(push)
        except AnotherGateway:
            with self._file.database.transaction():
                self._file.connection.executemany(_UNSEND, [(one.action_id,) for one in entries])
            raise
        except (ValidationFailed, BodyTooLarge, NotTheGateway) as error:
            if error.is_foreign:
                self.discover()  # raises if it is not only these that do not get through
            # Refused as a whole: what cannot be made smaller is to blame, or is stopped.
            if len(entries) > 1:
                return ActionSummary(), len(entries) // 2
            outcomes = {entries[0].action_id: refusal(entries[0].action_id, error)}
        else:
            outcomes = {outcome.action_id: outcome for outcome in answers.results}
        unanswered = Unavailable("the gateway's answer left this action out")
        done = dead = 0
        with self._file.database.transaction():
            for entry in entries:
                outcome = outcomes.get(entry.action_id) or refusal(entry.action_id, unanswered)
                if self._file.actions.answer(entry, outcome, self._chance()):
                    done += outcome.is_done
                    dead += not outcome.is_done
        return ActionSummary(done, dead, len(entries) - done - dead), ACTIONS_MAX


# --- ends of actions, reported --------------------------------------------------------------------


_ENTRY: Final = f"SELECT {COLUMNS} FROM _lakesync_actions WHERE action_id = ?"  # noqa: S608 - names
CLOSED: Final = "the client is closed; open its file again"
NOT_ENDED: Final = (
    "the action has not ended yet: it goes with the next sync, and is tried again until it ends"
)


class LiveAction(Reading[ActionEntry]):
    """The committed state of one action, read repeatedly."""

    def __init__(self, database: Database, action_id: str) -> None:
        self._database = database
        self._action_id = action_id
        self._last: ActionEntry | None = None

    def entry(self) -> ActionEntry:
        _, rows = attempt(lambda: self._database.read(_ENTRY, (self._action_id,))).unwrap()
        if not rows:
            raise NotFound(GONE, field="action_id")
        try:
            return ActionEntry.stored(*rows[0])  # type: ignore[arg-type]  # as they were stored
        except (ValueError, TypeError, OverflowError) as exc:
            raise FileCorrupt(f"{SALVAGE} ({exc!r})") from exc

    def read(self) -> ActionEntry | Unchanged:
        entry = self.entry()
        return entry if entry.has_ended else UNCHANGED


class QueuedAction:
    """A queued action: what `Actions.run` returns. Safe to use from several threads."""

    def __init__(self, action_id: str, database: Database, feed: ChangeFeed) -> None:
        self.action_id = action_id
        self.database = database
        self.feed = feed

    def entry(self) -> Result[ActionEntry, LakeSyncError]:
        """Return the action as it stands; ``NOT_FOUND`` once it was discarded."""
        return attempt(LiveAction(self.database, self.action_id).entry)

    def result(self, timeout_s: float | None = None) -> Result[dict[str, Any], LakeSyncError]:
        """Wait until it ends: gives its result, or the error with which it became a dead letter.

        Something must sync meanwhile, for example `SyncLoop`. ``ACTION_RUNNING`` if the action has
        not ended in time; it continues. ``NOT_FOUND`` if it was discarded.
        """
        return attempt(lambda: self._wait(timeout_s))

    def _wait(self, timeout_s: float | None) -> dict[str, Any]:
        self.database.must_be_idle()  # nobody could send it meanwhile
        with Watch(self.feed, LiveAction(self.database, self.action_id)) as watch:
            entry = watch.next(timeout_s)
            if entry is not None:
                return result_of(entry).unwrap()
            if watch.is_closed():
                raise ValidationFailed(CLOSED)
        raise ActionRunning(NOT_ENDED)


def result_of(entry: ActionEntry) -> Result[dict[str, Any], LakeSyncError]:
    if entry.status is ActionStatus.DONE:
        return Ok(dict(entry.data))
    return Err(entry.error or ActionFailed("no reason was given"))


class ResultCallback(Callback):
    """Calls an app's function once, with an action's outcome; see `Callback` for how."""

    def __init__(
        self, feed: ChangeFeed, function: Callable[[Any], object], reading: LiveAction
    ) -> None:
        self._reading = reading
        super().__init__(feed, function, None, frozenset)
        self.wake(EVERYTHING)  # it may have ended before this subscribed

    def concerns(self, changes: Changes) -> bool:
        del changes
        return True

    def _arguments(self, changes: Changes) -> Iterable[object]:
        del changes
        try:
            entry = self._reading.read()
        except NotFound:
            self.close()
            return
        except LakeSyncError:
            return  # closed, or the disk fails: the next commit asks again
        if isinstance(entry, ActionEntry):
            self.close()
            yield result_of(entry)


# --- what an app calls ----------------------------------------------------------------------------


_NOTHING: Final[Mapping[str, Any]] = {}


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
        attempt: Attempt,
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

    def send(self, *, stopped: Callable[[], bool] = never) -> Result[ActionSummary, LakeSyncError]:
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
