"""`ChangeFeed`: notifies its subscribers of the tables that changed, by any writer.

Rules of this module
    1. A committing thread only notes what changed, which costs a microsecond: everything else
       happens on the feed's own thread, which exists while there are subscribers.
    2. Subscribers are woken after a commit, and read committed data. Changes noted while they are
       being woken wake them again. So no subscriber can miss a change, or see half of one.
    3. A subscriber that the app has dropped is forgotten; callbacks are kept until they are closed.
    4. When the program's main thread has ended, all subscriptions end: a thread that iterates does
       not keep the program from ending.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.client.arguments import checked_names
from lakesync.client.forked import note_forks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile

GATHER_MS: Final = 16
"""By default, changes this close together are reported together: a screen shows no more."""
GATHER_MS_MAX: Final = 60_000
"""The longest that an app may have changes gathered."""
OTHERS_S: Final = 0.1
"""How often to look whether another process changed the file."""


class Changes(NamedTuple):
    """The changes since subscribers were last notified."""

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
    """A subscriber to changes. It must act briefly when notified: others wait for it.

    Args:
        tables: what it wants to hear of, in small letters; None for every commit.
    """

    def __init__(self, tables: frozenset[str] | None) -> None:
        self.tables = tables

    def concerns(self, changes: Changes) -> bool:
        """Return whether it subscribes to these."""
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
    """The changes of one file."""

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
        """End, because the notifying thread does not exist; see `lakesync.client.forked`."""
        self._lock, self._closed, self._running = threading.Lock(), True, False

    def is_closed(self) -> bool:
        """Return whether notifications have ended."""
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
        """Tell a subscriber nothing any more; safe to repeat."""
        with self._lock:
            self._subscribers.discard(subscriber)
            self._kept.discard(subscriber)

    def publish(self, changes: Changes) -> None:
        """Notify subscribers soon."""
        if self._running:
            with self._lock:
                self._noted |= changes
            self._signal.set()

    def close(self) -> None:
        """End all subscriptions; safe to repeat."""
        with self._lock:
            self._closed = True
            ended = list(self._subscribers)
            self._subscribers.clear()
            self._kept.clear()
        self._signal.set()
        for subscriber in ended:
            subscriber.end()

    def _committed(self) -> None:
        """Note what a transaction of this client changed; called behind each commit."""
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
