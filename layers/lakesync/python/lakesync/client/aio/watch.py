"""`AsyncWatch`: `Watch`, for ``async for``."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from lakesync.client.live.changes import Subscriber
from lakesync.client.live.watch import Unchanged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lakesync.client.live.changes import ChangeFeed, Changes
    from lakesync.client.live.watch import Reading

T = TypeVar("T")


class AsyncWatch(Subscriber, Generic[T]):
    """What there is now, and then each change, until it is closed; see `Watch`.

    ::

        async for rows in client.watch("SELECT * FROM todos WHERE done = 0"):
            show(rows)

    A query that SQLite refuses raises when the first rows are awaited. A task that stops waiting,
    for example after a time-out, gets what it missed when it waits again. For one task at a time.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        prepare: Callable[[], Reading[T]],
        read: Callable[[Callable[[], T | Unchanged]], Awaitable[T | Unchanged]],
    ) -> None:
        super().__init__(frozenset())
        self._feed = feed
        self._prepare = prepare
        self._read_on = read
        self._reading: Reading[T] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Future[T | Unchanged] | None = None
        self._woken = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Wait for the next state.

        Raises:
            LakeSyncError: it cannot be read; the next call tries again.
        """
        while not self.is_closed():
            if self._task is None:
                if self._loop is not None:
                    await self._woken.wait()
                    self._woken.clear()
                    if self.is_closed():
                        break
                self._loop = asyncio.get_running_loop()
                self._task = asyncio.ensure_future(self._read_on(self._next))
            # Shielded: rows read for a task that stopped waiting are kept for the next call.
            try:
                value = await asyncio.shield(self._task)
            except asyncio.CancelledError:
                raise
            except BaseException:
                self._task = None
                self._woken.set()
                if self.is_closed():
                    break
                raise
            self._task = None
            if not isinstance(value, Unchanged):
                return value
        raise StopAsyncIteration

    def is_closed(self) -> bool:
        """Return whether nothing will follow."""
        return self._closed

    def _next(self) -> T | Unchanged:
        """Read, on a thread; for the first time prepare and subscribe before."""
        if self._reading is None:
            reading = self._prepare()
            self.tables = reading.tables
            self._feed.subscribe(self)
            self._reading = reading
        return self._reading.read()

    def wake(self, changes: Changes | None) -> None:  # noqa: ARG002 - it reads whatever there is
        """Note that something may have changed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def end(self) -> None:
        """Let the iteration end."""
        self._closed = True
        self.wake(None)

    def close(self) -> None:
        """End it; safe to repeat."""
        self._feed.forget(self)
        self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
