"""The threads that an `AsyncClient` works on, so that nothing keeps the event loop waiting.

Rules of this module
    1. One thread writes, one reads, one syncs. Each runs one operation after the other, in the
       order of the calls, and a transaction stays on its thread.
    2. A writer waits for its turn in the event loop, not on a thread. So an open transaction does
       not block a thread that readers need.
    3. As the program ends, running writes and reads are completed, but no network is waited for.
    4. An operation that is cancelled before its thread has begun it does not happen. One that has
       begun is completed, even if nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from lakesync.client.change_feed import checked_callback
from lakesync.client.loop import STOP_S
from lakesync.client.storage.misuse import note_forks
from lakesync.errors import TransactionOpen, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_IN_BLOCK: ContextVar[tuple[Threads, ...]] = ContextVar("lakesync_transactions", default=())
"""The clients that have a transaction open in this task, or in the task that started it."""


class Threads:
    """The threads of one client, each begun when it is needed. For one event loop."""

    def __init__(self) -> None:
        self._begin()
        note_forks(self)

    def forked(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._writer = ThreadPoolExecutor(1, "lakesync-writer")
        self._reader = ThreadPoolExecutor(1, "lakesync-reader")
        self._syncer = DaemonExecutor("lakesync-syncer")
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
        self._in_transaction = True
        _IN_BLOCK.set((*_IN_BLOCK.get(), self))

    def leave_block(self) -> None:
        self._in_transaction = False
        _IN_BLOCK.set(tuple(other for other in _IN_BLOCK.get() if other is not self))

    async def write(self, operation: Callable[[], T]) -> T:
        self.check_outside()
        async with self.turn:
            return await self.in_turn(operation)

    async def in_turn(self, operation: Callable[[], T]) -> T:
        return await _on(self._writer, operation)

    def behind(self, operation: Callable[[], object]) -> None:
        """Have something done by the thread that writes, and do not wait for it."""
        self._writer.submit(operation)

    async def read(self, operation: Callable[[], T]) -> T:
        return await _on(self._reader, operation)

    async def sync(self, operation: Callable[[Callable[[], bool]], T]) -> T:
        """Run work that waits for the network and can be stopped."""
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

    async def close(self, close: Callable[[], None], drop: Callable[[], None]) -> None:
        """Let what has begun end, requests within `STOP_S` or by ``drop``; then close."""
        self.check_outside()
        self.stopping.set()
        async with self.turn:
            try:
                await self._end_sync(drop)
                await _on(self._reader, lambda: None)
                await _on(self._writer, close)
            except ValidationFailed:
                return  # closed before
            self._syncer.shutdown()
            for threads in (self._reader, self._writer):
                threads.shutdown(wait=False)

    async def _end_sync(self, drop: Callable[[], None]) -> None:
        ended = asyncio.ensure_future(_on(self._syncer, lambda: None))
        for then in (drop, ended.cancel):
            if (await asyncio.wait({ended}, timeout=STOP_S))[0]:
                return await ended
            then()
        return None  # it still connects: it has its own end, and finds the file closed


class DaemonExecutor:
    """One thread that runs one operation after the other, and does not outlive the program."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_started = self._is_ended = False

    def submit(self, operation: Callable[[], T]) -> Future[T]:
        """Have something done; raises `RuntimeError` behind `shutdown`."""
        future: Future[T] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = operation()
            except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
                future.set_exception(exc)
            else:
                future.set_result(result)

        with self._lock:
            if self._is_ended:
                raise RuntimeError("the thread is ended")
            self._tasks.put(task)
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self) -> None:
        """End the thread after all submitted work, without waiting; safe to repeat."""
        with self._lock:
            self._is_ended = True
            self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


async def _on(threads: ThreadPoolExecutor | DaemonExecutor, operation: Callable[[], T]) -> T:
    try:
        future = threads.submit(operation)
    except RuntimeError as exc:  # its threads were ended
        raise ValidationFailed("the client is closed; open its file again") from exc
    return await asyncio.wrap_future(future)


def in_this_loop(callback: Callable[[T], object]) -> Callable[[T], None]:
    """Return a function that calls another in the running event loop, from any thread, awaited."""
    loop = asyncio.get_running_loop()
    checked_callback(callback)

    async def call(argument: T) -> None:
        result = callback(argument)
        if inspect.isawaitable(result):
            await result

    def wait(argument: T) -> None:
        called = call(argument)
        try:
            future = asyncio.run_coroutine_threadsafe(called, loop)
        except RuntimeError:  # the event loop has ended
            called.close()
            return
        with contextlib.suppress(CancelledError):  # as all that runs when the event loop ends
            future.result()

    wait.__qualname__ = getattr(callback, "__qualname__", repr(callback))
    return wait
