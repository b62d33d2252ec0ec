"""What a client reports to an app by itself: `watch`, `on_change`, `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from lakesync.client.live.callbacks import Callback, ConflictCallback
from lakesync.client.live.changes import ChangeFeed, folded_names
from lakesync.client.live.status import Activity, ClientStatus
from lakesync.client.live.watch import UNCHANGED, LiveQuery, Reading, Watch
from lakesync.client.storage.editor import Editor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.client.live.watch import Unchanged
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile

T = TypeVar("T")


class Observable(Editor):
    """The part of a client that others observe."""

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
        """Return the status, if it is another one than this gave last."""
        status = self._status()
        if status == self._last:
            return UNCHANGED
        self._last = status
        return status
