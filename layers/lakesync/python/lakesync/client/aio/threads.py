"""The threads that an `AsyncClient` works on, so that nothing keeps the event loop waiting.

Rules of this module
    1. One thread writes, one reads, one syncs. Each takes one thing after the other: what was asked
       first happens first, and a transaction stays on its thread.
    2. Who writes waits for its turn in the event loop, not on a thread. So a transaction that is
       open keeps no thread from those who read.
    3. Whatever is cancelled before its thread has begun it does not happen. What has begun happens
       whole, though nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from lakesync.errors import TransactionOpen, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_IN_BLOCK: ContextVar[tuple[Threads, ...]] = ContextVar("lakesync_transactions", default=())
"""The clients in a transaction of which this task is, or the task that started it was."""


class Threads:
    """The threads of one client, each begun when it is needed. For one event loop."""

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1, "lakesync-writer")
        self._reader = ThreadPoolExecutor(1, "lakesync-reader")
        self._syncer = ThreadPoolExecutor(1, "lakesync-syncer")
        self.turn = asyncio.Lock()
        """Whose turn it is to write."""
        self.stopping = threading.Event()
        self._in_transaction = False

    def check_outside(self) -> None:
        """Raise `TransactionOpen` if waiting for the turn would be for ever."""
        if self._in_transaction and self in _IN_BLOCK.get():
            raise TransactionOpen(
                "a transaction is open in this task, or in the one that began it: edit through "
                "what `client.transaction()` gave, or once that has ended; nothing was written"
            )

    def enter_block(self) -> None:
        """Note that this task, and those that it starts, are in a transaction."""
        self._in_transaction = True
        _IN_BLOCK.set((*_IN_BLOCK.get(), self))

    def leave_block(self) -> None:
        """Note that the transaction has ended."""
        self._in_transaction = False
        _IN_BLOCK.set(tuple(other for other in _IN_BLOCK.get() if other is not self))

    async def write(self, operation: Callable[[], T]) -> T:
        """Do something that writes, when it is its turn."""
        self.check_outside()
        async with self.turn:
            return await self.in_turn(operation)

    async def in_turn(self, operation: Callable[[], T]) -> T:
        """Do something that writes, while it is the caller's turn."""
        return await _on(self._writer, operation)

    def behind(self, operation: Callable[[], object]) -> None:
        """Have something done by the thread that writes, and do not wait for it."""
        self._writer.submit(operation)

    async def read(self, operation: Callable[[], T]) -> T:
        """Do something that reads."""
        return await _on(self._reader, operation)

    async def sync(self, operation: Callable[[Callable[[], bool]], T]) -> T:
        """Do something that waits for the network, and is told when to stop."""
        self.check_outside()
        given_up = threading.Event()
        try:
            return await _on(
                self._syncer,
                lambda: operation(lambda: given_up.is_set() or self.stopping.is_set()),
            )
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def close(self, close: Callable[[], None]) -> None:
        """Let all that has begun end, then close, and end the threads."""
        self.check_outside()
        self.stopping.set()
        async with self.turn:
            try:
                await _on(self._syncer, lambda: None)
                await _on(self._reader, lambda: None)
                await _on(self._writer, close)
            except ValidationFailed:
                return  # closed before
            for threads in (self._syncer, self._reader, self._writer):
                threads.shutdown(wait=False)


async def _on(threads: ThreadPoolExecutor, operation: Callable[[], T]) -> T:
    try:
        future = threads.submit(operation)
    except RuntimeError as exc:  # its threads were ended
        raise ValidationFailed("the client is closed; open its file again") from exc
    return await asyncio.wrap_future(future)


def in_this_loop(callback: Callable[[T], object]) -> Callable[[T], None]:
    """Give what calls a function in the running event loop, from any thread, and awaits it."""
    loop = asyncio.get_running_loop()

    async def call(argument: T) -> None:
        result = callback(argument)
        if inspect.isawaitable(result):
            await result

    def wait(argument: T) -> None:
        asyncio.run_coroutine_threadsafe(call(argument), loop).result()

    wait.__qualname__ = getattr(callback, "__qualname__", repr(callback))
    return wait
