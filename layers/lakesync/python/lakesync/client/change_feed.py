"""Changes of tables, by any writer, told to an app: by callbacks, and by queries that are watched.

Rules of this module
    1. A callback runs on a thread of its own, which exists while it runs: neither edits, nor
       syncing, nor other callbacks wait for one that blocks.
    2. It is never called concurrently; the next call reports what changes while it runs.
    3. Its exceptions are logged, and it is called again at the next change.
    4. A committing thread only notes what changed, which costs a microsecond: everything else
       happens on the feed's own thread, which exists while there are subscribers.
    5. Subscribers are woken after a commit, and read committed data. Changes noted while they are
       being woken wake them again. So no subscriber can miss a change, or see half of one.
    6. A subscriber that the app has dropped is forgotten; callbacks are kept until they are closed.
    7. When the program's main thread has ended, all subscriptions end: a thread that iterates does
       not keep the program from ending.
    8. The feed notifies a watch of a possible change; the watch reads on the iterating thread, and
       gives the rows only if they differ from the last ones. Each reading is one statement, hence
       of one state of the file: it sees a transaction, or a pulled page, whole or not at all.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from lakesync.client.storage.misuse import checked_names, note_forks
from lakesync.client.storage.queries import shape
from lakesync.client.storage.sqlite_file import query_result
from lakesync.client.storage.statement_capture import as_cells
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.sqlite_file import Database

# --- the feed -------------------------------------------------------------------------------------


GATHER_MS: Final = 16
"""By default, changes this close together are reported together: a screen shows no more."""
GATHER_MS_MAX: Final = 60_000
"""The longest that an app may have changes gathered."""
OTHERS_S: Final = 0.1
"""How often to look whether another process changed the file."""


class Changes(NamedTuple):
    tables: frozenset[str] = frozenset()
    """Names of synced tables, and of local ones that `execute` wrote."""
    keys: frozenset[str] = frozenset()
    """The same in small letters, and their SQLite names: the names that subscribers use."""
    everything: bool = False
    """It is not known which tables changed."""
    lost: tuple[LostWrite, ...] = ()
    """Own writes that lost to others."""

    def __or__(self, other: object) -> Changes:
        if not isinstance(other, Changes):
            return NotImplemented
        return Changes(
            self.tables | other.tables,
            self.keys | other.keys,
            self.everything or other.everything,
            self.lost + other.lost,
        )


NOTHING: Final = Changes()
EVERYTHING: Final = Changes(everything=True)


def folded_names(tables: Iterable[str]) -> frozenset[str]:
    """Return names of tables as subscribers know them; a single name is one table."""
    return frozenset(name.lower() for name in checked_names(tables, "tables"))


class Subscriber(ABC):
    """A subscriber to changes. It must act briefly when notified: others wait for it."""

    def __init__(self, tables: frozenset[str] | None) -> None:
        self.tables = tables

    def concerns(self, changes: Changes) -> bool:
        """Return whether it subscribes to any of these."""
        return self.tables is None or changes.everything or not self.tables.isdisjoint(changes.keys)

    @abstractmethod
    def wake(self, changes: Changes) -> None:
        """Hear of changes, on the feed's thread."""

    @abstractmethod
    def end(self) -> None:
        """Hear that there will be no others: the client is closed. Safe to repeat."""

    def check(self) -> None:  # noqa: B027 - most have nothing to see to
        """See to what takes too long; called now and then."""


class ChangeFeed:
    def __init__(self, file: ClientFile, gather_ms: int = GATHER_MS) -> None:
        self._file = file
        self._gather_s = gather_ms / 1000
        self._lock = threading.Lock()
        self._noted = NOTHING
        self._signal = threading.Event()
        self._subscribers: weakref.WeakSet[Subscriber] = weakref.WeakSet()
        self._kept: set[Subscriber] = set()
        self._running = False
        self._closed = False
        file.database.on_commit(self._committed)
        note_forks(self)

    def forked(self) -> None:
        self._lock, self._closed, self._running = threading.Lock(), True, False

    def is_closed(self) -> bool:
        return self._closed

    def subscribe(self, subscriber: Subscriber, *, keep: bool = False) -> None:
        """Notify a subscriber of changes from now on; ``keep`` it although the app drops it."""
        with self._lock:
            if self._closed:
                subscriber.end()
                return
            self._subscribers.add(subscriber)
            if keep:
                self._kept.add(subscriber)
            if not self._running:
                self._running = True
                self._file.database.changed_by_others()  # from now on
                threading.Thread(target=self._run, name="lakesync-watch", daemon=True).start()

    def forget(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)
            self._kept.discard(subscriber)

    def publish(self, changes: Changes) -> None:
        if self._running:
            with self._lock:
                self._noted |= changes
            self._signal.set()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ended = list(self._subscribers)
            self._subscribers.clear()
            self._kept.clear()
        self._signal.set()
        for subscriber in ended:
            subscriber.end()

    def _committed(self) -> None:
        if not self._running:
            self._file.catalogue.forget_changed()
        else:
            changed = self._file.catalogue.take_changed()
            names = frozenset(name for name, _ in changed)
            folded = (name.lower() for both in changed for name in both)
            self.publish(Changes(names, frozenset(folded)))

    def _run(self) -> None:
        woken_s = 0.0
        while True:
            self._signal.wait(OTHERS_S)
            if not threading.main_thread().is_alive():
                self.close()  # the program ends, unless somebody waits here for ever
            if self._file.database.changed_by_others():
                self.publish(EVERYTHING)
            if self._signal.is_set() and not self._closed:
                time.sleep(max(0.0, woken_s + self._gather_s - time.monotonic()))
                woken_s = time.monotonic()
            with self._lock:
                self._signal.clear()
                changes, self._noted = self._noted, NOTHING
                subscribers = list(self._subscribers)
                if not subscribers:
                    self._running = False
                    return
            _tell(subscribers, changes)
            del subscribers  # what the app drops is not kept while this waits


def _tell(subscribers: Iterable[Subscriber], changes: Changes) -> None:
    for subscriber in subscribers:
        if changes is not NOTHING and subscriber.concerns(changes):
            subscriber.wake(changes)
        subscriber.check()


# --- callbacks ------------------------------------------------------------------------------------


CALLBACK_S: Final = 5.0
"""A callback that runs longer is reported, once in each call."""

_log = logging.getLogger("lakesync.client")


def checked_callback(function: Callable[[Any], object]) -> Callable[[Any], object]:
    if not callable(function):
        raise ValidationFailed(f"a callback is a function, not {function!r}", field="callback")
    return function


class Callback(Subscriber):
    """The result of `Client.on_change`: close it to end the calls, or use it in a ``with``."""

    def __init__(
        self,
        feed: ChangeFeed,
        function: Callable[[Any], object],
        tables: frozenset[str] | None,
        every_table: Callable[[], frozenset[str]],
    ) -> None:
        super().__init__(tables)
        self._feed = feed
        self._function = checked_callback(function)
        self._every_table = every_table
        self._lock = threading.Lock()
        self._noted = NOTHING
        self._running = False
        self._closed = False
        self._since_s: float | None = None
        self.error: Exception | None = None
        """What its latest call raised; None if it did not."""
        feed.subscribe(self, keep=True)

    def concerns(self, changes: Changes) -> bool:
        """Return whether tables changed; a commit that changed none of them is ignored."""
        return (changes.everything or bool(changes.keys)) and super().concerns(changes)

    def wake(self, changes: Changes) -> None:
        with self._lock:
            if self._closed:
                return
            self._noted |= changes
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="lakesync-callback", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                changes, self._noted = self._noted, NOTHING
                if self._closed or changes is NOTHING:
                    self._running = False
                    return
            for argument in self._arguments(changes):
                self._call(argument)

    def _call(self, argument: object) -> None:
        self._since_s = time.monotonic()
        try:
            self._function(argument)
            self.error = None
        except Exception as exc:  # noqa: BLE001 - the app's code; see rule 3
            self.error = exc
            if self._closed:  # as what it used may be
                _log.info("%s ended with %s: it is closed", self._name, type(exc).__name__)
            else:
                _log.exception("%s raised; it is called again at the next change", self._name)
        self._since_s = None

    def _arguments(self, changes: Changes) -> Iterable[object]:
        return (self._names(changes),)

    def _names(self, changes: Changes) -> frozenset[str]:
        names = self._every_table() if changes.everything else changes.tables
        if self.tables is None:
            return names
        return frozenset(name for name in names if name.lower() in self.tables)

    @property
    def _name(self) -> str:
        return f"the callback {getattr(self._function, '__qualname__', repr(self._function))}"

    def check(self) -> None:
        since_s = self._since_s
        if since_s is not None and time.monotonic() - since_s > CALLBACK_S:
            self._since_s = None
            _log.warning(
                "%s has run for %g s; it hears of further changes when it returns: hand long work "
                "to a thread of yours",
                self._name,
                CALLBACK_S,
            )

    def end(self) -> None:
        """Prevent further calls; a current one ends by itself."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """As `end`; safe to repeat, from the callback too."""
        self._feed.forget(self)
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConflictCallback(Callback):
    """The result of `Client.on_conflict`: its function is called once for each write that lost."""

    def concerns(self, changes: Changes) -> bool:
        return any(True for _ in self._arguments(changes))

    def _arguments(self, changes: Changes) -> Iterable[object]:
        tables = self.tables
        return (lost for lost in changes.lost if tables is None or lost.table.lower() in tables)


# --- the rows of a query, watched -----------------------------------------------------------------


T = TypeVar("T")


class Unchanged:
    """The result of a reading that equals the previous one."""


UNCHANGED: Final = Unchanged()


class Reading(ABC, Generic[T]):
    tables: frozenset[str] | None = None
    """What it depends on, in small letters; None for whatever is committed."""

    @abstractmethod
    def read(self) -> T | Unchanged: ...


class LiveQuery(Reading[list[T]]):
    """One query that is read again and again; refused at once if it does anything but read."""

    def __init__(
        self,
        database: Database,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object],
        tables: Iterable[str] | None,
        as_: type[T],
    ) -> None:
        self._database = database
        self._sql = sql
        self._parameters = as_cells(parameters)
        self._shape = shape(as_)
        self._last: object = None
        read = query_result(lambda: database.tables_of(sql, self._parameters)).unwrap()
        self.tables = read if tables is None else folded_names(tables)

    def read(self) -> list[T] | Unchanged:
        def rows() -> list[T] | Unchanged:
            state = self._database.typed(self._sql, self._parameters)
            if state == self._last:
                return UNCHANGED
            given: list[T] = self._shape(*state)
            self._last = state
            return given

        return query_result(rows).unwrap()


class Watch(Subscriber, Generic[T]):
    """An iterator of the current state, and then of each change, until it is closed.

    ::

        for rows in client.watch("SELECT * FROM todos WHERE done = 0"):
            show(rows)

    It waits for the next change, and gives the latest state: a slow consumer misses intermediate
    states, and never the last one. It ends when it, or its client, is closed, from any thread. A
    dropped iterator is closed. For one thread at a time.
    """

    def __init__(self, feed: ChangeFeed, reading: Reading[T]) -> None:
        super().__init__(reading.tables)
        self._feed = feed
        self._reading = reading
        self._woken = threading.Event()
        self._woken.set()
        self._closed = False
        feed.subscribe(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Wait for the next state.

        Raises:
            LakeSyncError: it cannot be read; the next call tries again.
        """
        value = self.next()
        if value is None:
            raise StopIteration
        return value

    def next(self, timeout_s: float | None = None) -> T | None:
        """Wait at most this long for the next state; None if there is none, or if it is closed."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_closed():
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not self._woken.wait(left_s):
                return None
            value = self.take()
            if not isinstance(value, Unchanged):
                return value
        return None

    def is_closed(self) -> bool:
        """Return whether nothing will follow."""
        return self._closed or self._feed.is_closed()

    def take(self) -> T | Unchanged:
        """Read now, if anything may have changed; `UNCHANGED` if nothing has."""
        if self.is_closed() or not self._woken.is_set():
            return UNCHANGED
        # Cleared before it reads, not after: a change meanwhile needs another reading.
        self._woken.clear()
        try:
            return self._reading.read()
        except BaseException:
            if self.is_closed():
                return UNCHANGED
            self._woken.set()
            raise

    def wake(self, changes: Changes) -> None:  # noqa: ARG002 - it reads whatever there is
        """Note that something may have changed."""
        self._woken.set()

    def end(self) -> None:
        self._closed = True
        self._woken.set()

    def close(self) -> None:
        """End it, from any thread; safe to repeat."""
        self._feed.forget(self)
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
