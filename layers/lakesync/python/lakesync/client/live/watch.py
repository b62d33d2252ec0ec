"""`Watch`: the rows of a query, now and whenever they change.

The feed notifies a watch of a possible change; the watch reads on the iterating thread, and gives
the rows only if they differ from the last ones. Each reading is one statement, hence of one state
of the file: it sees a transaction, or a pulled page, whole or not at all.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from lakesync.client.live.changes import Subscriber, folded_names
from lakesync.client.storage.failures import query_result
from lakesync.client.storage.parameters import as_cells
from lakesync.client.storage.shapes import shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.client.live.changes import ChangeFeed, Changes
    from lakesync.client.storage.database import Database

T = TypeVar("T")


class Unchanged:
    """The result of a reading that equals the previous one."""


UNCHANGED: Final = Unchanged()


class Reading(ABC, Generic[T]):
    """Something that is read repeatedly."""

    tables: frozenset[str] | None = None
    """What it depends on, in small letters; None for whatever is committed."""

    @abstractmethod
    def read(self) -> T | Unchanged:
        """Return what there is, if it is something else than what this gave last."""


class LiveQuery(Reading[list[T]]):
    """One query that is read again and again.

    Raises:
        ValidationFailed: SQLite refuses the query, or it would do anything but read.
    """

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
        """Return the rows, if they are others than those that it gave last."""

        def rows() -> list[T] | Unchanged:
            names, answer = self._database.read(self._sql, self._parameters)
            kinds = self._database.kinds(names, self._sql, self._parameters)
            state = names, answer, kinds
            if state == self._last:
                return UNCHANGED
            given: list[T] = self._shape(names, answer, kinds)
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
        """Let the iteration end."""
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
