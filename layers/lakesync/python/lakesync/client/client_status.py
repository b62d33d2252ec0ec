"""What a client reports to an app by itself: the state of syncing, `watch`, `on_change`, `status`.

`Activity` is where the state of syncing is recorded as it changes; a `ClientStatus` is what an app
sees of it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from lakesync.client.change_feed import (
    UNCHANGED,
    Callback,
    ChangeFeed,
    Changes,
    ConflictCallback,
    LiveQuery,
    Reading,
    Watch,
    folded_names,
)
from lakesync.client.storage.editor import Editor
from lakesync.client.storage.sqlite_file import attempt
from lakesync.core.messages import tables_read
from lakesync.core.names import folded
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.change_feed import Unchanged
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.sqlite_file import Database
    from lakesync.core.messages import Progress, PullPage
    from lakesync.errors import LakeSyncError

# --- the state of syncing -------------------------------------------------------------------------


STOPPED_SHOWN_MAX: Final = 100
"""How many edits `ClientStatus.stopped_edits` names, oldest first."""


@dataclass(frozen=True, slots=True)
class StoppedEdit:
    """An edit that does not get through to the gateway, while others do."""

    table: str
    row_id: str
    reason: str
    """What was answered instead: the size, a proxy's rule."""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The sync status of a client at one moment."""

    connected: bool = False
    """A socket to the gateway is open, which reports changes at once; else the client polls."""
    socket_error: str | None = None
    """Why no socket is open: what the latest attempt at its address met, or what closed it. None
    while one is open, and if none was tried.
    """
    has_synced: bool = False
    """Everything was read once, so the rows are complete; remembered over restarts."""
    last_synced_at: datetime | None = None
    """When a pull last reached the end; after a restart, when one that brought something last did.
    By the gateway's clock, as far as it is known.
    """
    uploading: bool = False
    """Whether a push is in progress."""
    downloading: bool = False
    """Whether a first sync, or a pull that brings changes, is in progress."""
    synced_tables: frozenset[str] = frozenset()
    """The tables whose rows are present: during a first sync those that it has read to the end, as
    of its begin, or of its checkpoint, or later; afterwards all.
    """
    received: int = 0
    """Deltas that the latest pull has brought so far: the progress of a first sync."""
    progress: Progress | None = None
    """How many rows of a first sync were read, out of how many; None while no rows are read, and if
    the gateway does not know their number, because it has no checkpoint of them.
    """
    pending: int = 0
    """Edits that the gateway is not known to hold."""
    stopped_edits: tuple[StoppedEdit, ...] = ()
    """Those of them that something on the way to the gateway stops, each for itself: a proxy, most
    likely. They wait, and are tried again by themselves; at most `STOPPED_SHOWN_MAX`.
    """
    quarantined: int = 0
    """Edits that were refused and wait for the app."""
    actions_pending: int = 0
    """Actions that have not ended."""
    actions_dead: int = 0
    """Actions that failed, or whose outcome is unknown, and that wait for the app."""
    attachments_pending: int = 0
    """Attachments that wait to be uploaded."""
    attachments_refused: int = 0
    """Attachments that the gateway does not take, and wait for the app."""
    conflicts: int = 0
    """Conflicts that wait for the app; see `Client.conflicts`."""
    conflicts_dropped: int = 0
    """Conflicts that were dropped unresolved, because there were too many."""
    last_error: LakeSyncError | None = None
    """Why the last push or pull, or sending of actions or attachments, failed; None if none did."""


class Activity:
    """What a client's pushes and pulls are doing. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uploads = 0
        self._downloading = False
        self._received = 0
        self._progress: Progress | None = None
        self._last_ms = 0
        self._errors: dict[str, LakeSyncError | None] = {}
        self._connected = False
        self._socket_error: str | None = None
        self.on_change: Callable[[Changes], None] = lambda _: None

    def _notify(self) -> None:
        self.on_change(Changes())

    @property
    def connected(self) -> bool:
        return self._connected

    def hears(self, *, is_open: bool, reason: str | None) -> None:
        if (self._connected, self._socket_error) != (is_open, reason):
            self._connected, self._socket_error = is_open, reason
            self._notify()

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        with self._lock:
            self._uploads += 1
        self._notify()
        try:
            yield
        finally:
            with self._lock:
                self._uploads -= 1
            self._notify()

    @contextlib.contextmanager
    def downloading(self) -> Iterator[None]:
        """Note that a pull is in progress; it is reported once it brings changes."""
        self._received = 0
        try:
            yield
        finally:
            self._downloading, self._progress = False, None

    def page(self, page: PullPage, *, is_first: bool) -> None:
        self._received += page.count
        self._progress = page.progress
        if is_first or page.count or page.has_more:
            self._downloading = True
            self._notify()

    def lost(self, writes: tuple[LostWrite, ...]) -> None:
        if writes:
            self.on_change(Changes(lost=writes))

    def reached_end(self, now_ms: int) -> None:
        self._last_ms = max(self._last_ms, now_ms)

    def ended(self, half: str, error: LakeSyncError | None) -> None:
        self._errors[half] = error
        self._notify()

    def status(self, database: Database) -> ClientStatus:
        """Return all of it, including the file's part. It never fails: see ``last_error``."""
        result = attempt(lambda: database.read(_COUNTS)[1][0])
        error = next(filter(None, map(self._errors.get, _HALVES)), None)
        counts, tables, stopped = [0] * _COUNTED, frozenset[str](), "[]"
        if isinstance(result, Ok):
            counts = [int(str(count)) for count in result.value[:_COUNTED]]
            *texts, stopped = map(str, result.value[_COUNTED:])
            tables = _synced(str(result.value[0]), *texts)
        else:
            error = result.error
        stored_ms, entries, quarantined, actions, dead, attachments, refused, *conflicts = counts
        last_ms = max(self._last_ms, stored_ms)
        return ClientStatus(
            connected=self._connected,
            socket_error=self._socket_error,
            has_synced=stored_ms > 0,
            last_synced_at=datetime.fromtimestamp(last_ms / 1000, UTC) if last_ms else None,
            uploading=self._uploads > 0,
            downloading=self._downloading,
            synced_tables=tables,
            received=self._received,
            progress=self._progress,
            pending=entries - quarantined,
            stopped_edits=tuple(StoppedEdit(*edit) for edit in json.loads(stopped)),
            quarantined=quarantined,
            actions_pending=actions,
            actions_dead=dead,
            attachments_pending=attachments,
            attachments_refused=refused,
            conflicts=conflicts[0],
            conflicts_dropped=conflicts[1],
            last_error=error,
        )


def _synced(
    synced_ms: str, snapshot: str, reads_rows: str, names: str, rows: str
) -> frozenset[str]:
    """Get the tables whose rows are present, by the file's record of a snapshot and its tables."""
    known = frozenset[str](json.loads(names))
    if synced_ms != "0":
        return known
    if not snapshot and reads_rows == "0":
        return frozenset()
    # Before its end the log is complete for no table, after a snapshot or without one.
    of_rows = frozenset[str](json.loads(rows))
    read = tables_read(snapshot, known) if snapshot else known
    return frozenset(name for name in read if folded(name) in of_rows)


_COUNTED = 9
"""How many of its columns are numbers."""
_HALVES = ("pull", "push", "actions", "attachments")
_COUNTS = (
    "SELECT max(synced_ms), "  # noqa: S608 - a number
    "(SELECT count(*) FROM _lakesync_outbox), "
    "(SELECT count(*) FROM _lakesync_outbox WHERE status = 'quarantined'), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status IN ('waiting', 'sent')), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status = 'dead'), "
    "(SELECT count(*) FROM _lakesync_attachments WHERE status = 'waiting'), "
    "(SELECT count(*) FROM _lakesync_attachments WHERE status = 'refused'), "
    "(SELECT count(*) FROM _lakesync_conflicts), "
    "coalesce((SELECT dropped FROM _lakesync_conflict_counts), 0), "
    "snapshot, resync_mode, "
    "(SELECT json_group_array(name) FROM _lakesync_tables), "
    "(SELECT json_group_array(name) FROM _lakesync_row_tables), "
    "(SELECT json_group_array(json_array(name, row_id, message)) FROM (SELECT name, row_id, "
    "message FROM _lakesync_outbox JOIN _lakesync_tables ON id = table_id "
    "WHERE code IS NOT NULL AND status IN ('pending', 'sent', 'unseen', 'late') "
    f"ORDER BY hlc LIMIT {STOPPED_SHOWN_MAX})) FROM _lakesync_sync"
)


# --- what an app calls ----------------------------------------------------------------------------


T = TypeVar("T")


class Observable(Editor):
    _file: ClientFile
    _activity: Activity
    _feed: ChangeFeed

    def _observe(self, file: ClientFile, gather_ms: int) -> None:
        self._activity = Activity()
        self._feed = ChangeFeed(file, gather_ms)
        self._activity.on_change = self._feed.publish

    @overload
    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        tables: Iterable[str] | None = ...,
    ) -> Watch[list[dict[str, Any]]]: ...

    @overload
    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        tables: Iterable[str] | None = ...,
        as_: type[T],
    ) -> Watch[list[T]]: ...

    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        tables: Iterable[str] | None = None,
        as_: type[Any] = dict,
    ) -> Watch[list[Any]]:
        """Return a query's rows now, and again whenever they are others; see `Watch`.

        Any writer's changes count: this client's, a pull's, or those of another process with the
        same file. Changes within ``gather_ms`` of the client are reported together.

        Args:
            sql: a query, and ``parameters`` and ``as_``, as `query` takes them.
            parameters: as there.
            tables: read again when one of these, or the one that is named, changes; by default
                those that SQLite says the query reads.
            as_: as there.

        Raises:
            LakeSyncError: SQLite refuses the query.
        """
        return Watch(self._feed, self._live_query(sql, parameters, tables, as_))

    def _live_query(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object],
        tables: Iterable[str] | None,
        as_: type[T],
    ) -> LiveQuery[T]:
        return LiveQuery(self._file.database, sql, parameters, tables, as_)

    def on_change(
        self,
        callback: Callable[[frozenset[str]], object],
        tables: Iterable[str] | None = None,
    ) -> Callback:
        """Call a function with the names of the synced tables that changed, until it is closed.

        ``tables``: only these, or the one that is named; by default all. The function is called on
        a thread of its own, soon after the commit, and never concurrently. Its exceptions are
        logged, and so is a call that takes longer than `CALLBACK_S`; neither stops anything else.

        Raises:
            ValidationFailed: the callback cannot be called, or a table is no name.
        """
        return Callback(self._feed, callback, _folded(tables), self._table_names)

    def on_conflict(
        self, callback: Callable[[LostWrite], object], tables: Iterable[str] | None = None
    ) -> Callback:
        """Call a function with each conflict that a pull shows, until it is closed.

        That is: another client wrote the same column, or deleted the row, without knowing of this
        client's edit, nor this client of its, and one of the two is lost. Mostly this client's;
        its own stands (``won``) where it replaced a value that it had never read, and whose author
        cannot know. It is called as `on_change` calls. Conflicts are also kept in the file until
        the app resolves them: see `Client.conflicts`.
        """
        return ConflictCallback(self._feed, callback, _folded(tables), self._table_names)

    def _table_names(self) -> frozenset[str]:
        _, rows = self._file.database.read("SELECT name FROM _lakesync_tables")
        return frozenset(str(name) for (name,) in rows)

    @property
    def status(self) -> ClientStatus:
        """The current sync status; reading it never fails and never waits for the network."""
        return self._activity.status(self._file.database)

    @property
    def connected(self) -> bool:
        """Return whether a WebSocket is open, which reports changes at once."""
        return self._activity.connected

    def watch_status(self) -> Watch[ClientStatus]:
        """Return the status now, and again whenever it is another one; see `Watch`."""
        return Watch(self._feed, self._live_status())

    def _live_status(self) -> LiveStatus:
        return LiveStatus(lambda: self.status)


def _folded(tables: Iterable[str] | None) -> frozenset[str] | None:
    return None if tables is None else folded_names(tables)


class LiveStatus(Reading[ClientStatus]):
    """The status, read again and again."""

    def __init__(self, status: Callable[[], ClientStatus]) -> None:
        self._status = status
        self._last: ClientStatus | None = None

    def read(self) -> ClientStatus | Unchanged:
        status = self._status()
        if status == self._last:
            return UNCHANGED
        self._last = status
        return status
