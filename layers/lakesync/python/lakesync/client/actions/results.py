"""Reports the ends of actions, to those who wait for one and to a callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.client.actions.entries import COLUMNS, ActionEntry, ActionStatus
from lakesync.client.actions.queue import GONE
from lakesync.client.live.callbacks import Callback
from lakesync.client.live.changes import EVERYTHING
from lakesync.client.live.watch import UNCHANGED, Reading, Watch
from lakesync.client.storage.failures import SALVAGE, attempt
from lakesync.errors import (
    ActionFailed,
    ActionRunning,
    FileCorrupt,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.client.live.changes import ChangeFeed, Changes
    from lakesync.client.live.watch import Unchanged
    from lakesync.client.storage.database import Database

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
        """Return it.

        Raises:
            NotFound: it was discarded, or was done long ago and removed.
            LakeSyncError: the file cannot be read.
        """
        _, rows = attempt(lambda: self._database.read(_ENTRY, (self._action_id,))).unwrap()
        if not rows:
            raise NotFound(GONE, field="action_id")
        try:
            return ActionEntry.stored(*rows[0])  # type: ignore[arg-type]  # as they were stored
        except (ValueError, TypeError, OverflowError) as exc:
            raise FileCorrupt(f"{SALVAGE} ({exc!r})") from exc

    def read(self) -> ActionEntry | Unchanged:
        """Return it once it has ended."""
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
    """Return how an action that has ended did."""
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
        """Tell that any commit may be the one that ends it."""
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
