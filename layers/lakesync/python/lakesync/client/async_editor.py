"""What an `AsyncClient` offers beside itself: edits, watches, actions, attachments, all awaited.

`AsyncEditor` and `AsyncTransaction` are `Editor` and `Transaction`; `AsyncWatch` is `Watch`, for
``async for``; `AsyncActions` is ``client.actions``, `AsyncAttachments` ``client.attachments``.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from lakesync.client.app_actions import CLOSED, NOT_ENDED, LiveAction, result_of
from lakesync.client.async_threads import in_this_loop
from lakesync.client.change_feed import Subscriber, Unchanged
from lakesync.errors import ActionRunning, LakeSyncError, ValidationFailed
from lakesync.result import Err, Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from lakesync.client.app_actions import Actions, ActionSummary, QueuedAction
    from lakesync.client.app_attachments import Attachments, UploadSummary
    from lakesync.client.async_threads import Threads
    from lakesync.client.change_feed import ChangeFeed, Changes, Reading
    from lakesync.client.storage.action_queue import ActionEntry
    from lakesync.client.storage.attachment_store import AttachmentEntry, Source
    from lakesync.client.storage.editor import Editor, Transaction
    from lakesync.core.attachments import Attachment
    from lakesync.core.delta import Delta
    from lakesync.core.messages import ActionDescription

    Ended = Result[dict[str, Any], LakeSyncError]

# --- watches --------------------------------------------------------------------------------------


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


# --- edits ----------------------------------------------------------------------------------------


_NOTHING: Final[Mapping[str, object]] = {}


class AsyncEditor(ABC):
    """What a client and its transaction both offer: reads, and edits; an ``Err`` wrote nothing."""

    _blocking: Editor

    async def insert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """As `Client.insert`."""
        return await self._write(lambda: self._blocking.insert(table, row_id, columns))

    async def upsert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """As `Client.upsert`."""
        return await self._write(lambda: self._blocking.upsert(table, row_id, columns))

    async def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """As `Client.update`."""
        return await self._write(lambda: self._blocking.update(table, row_id, columns))

    async def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """As `Client.delete`."""
        return await self._write(lambda: self._blocking.delete(table, row_id))

    async def insert_many(
        self, table: str, rows: Mapping[str, Mapping[str, object]]
    ) -> Result[int, LakeSyncError]:
        """As `Client.insert_many`."""
        return await self._write(lambda: self._blocking.insert_many(table, rows))

    async def execute(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> Result[int, LakeSyncError]:
        """As `Client.execute`."""
        return await self._write(lambda: self._blocking.execute(sql, parameters))

    async def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """As `Client.get`."""
        return await self._read(lambda: self._blocking.get(table, row_id))

    @overload
    async def query(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ...
    ) -> Result[list[dict[str, Any]], LakeSyncError]: ...

    @overload
    async def query(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        as_: type[T],
    ) -> Result[list[T], LakeSyncError]: ...

    async def query(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        as_: type[Any] = dict,
    ) -> Result[list[Any], LakeSyncError]:
        """As `Client.query`."""
        return await self._read(lambda: self._blocking.query(sql, parameters, as_=as_))

    @abstractmethod
    async def _write(
        self, operation: Callable[[], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]: ...

    @abstractmethod
    async def _read(
        self, operation: Callable[[], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]: ...


class AsyncTransaction(AsyncEditor):
    """The edits of one ``async with client.transaction() as tx``; as `Transaction`."""

    def __init__(self, transaction: Transaction, threads: Threads) -> None:
        self._blocking = self._transaction = transaction
        self._threads = threads

    async def run_action(
        self,
        connector: str,
        action: str,
        params: Mapping[str, Any] = _NOTHING,
        *,
        idempotency_key: str = "",
    ) -> Result[str, LakeSyncError]:
        """As `Transaction.run_action`."""
        run = self._transaction.run_action
        return await self._write(
            lambda: run(connector, action, params, idempotency_key=idempotency_key)
        )

    async def _write(
        self, operation: Callable[[], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]:
        return await answered(self._threads.in_turn(operation))

    _read = _write


async def answered(operation: Awaitable[Result[T, LakeSyncError]]) -> Result[T, LakeSyncError]:
    """Return the result of an operation that could not even begin, too."""
    try:
        return await operation
    except LakeSyncError as error:
        return Err(error)


# --- actions --------------------------------------------------------------------------------------


_NO_PARAMS: Final[Mapping[str, Any]] = {}


class AsyncQueuedAction:
    """As `QueuedAction`; any number of tasks may wait for one."""

    def __init__(self, queued: QueuedAction, threads: Threads) -> None:
        self.action_id = queued.action_id
        self._queued = queued
        self._threads = threads

    async def entry(self) -> Result[ActionEntry, LakeSyncError]:
        """As `QueuedAction.entry`."""
        return await answered(self._threads.read(self._queued.entry))

    async def result(self, timeout_s: float | None = None) -> Ended:
        """As `QueuedAction.result`."""
        database, feed = self._queued.database, self._queued.feed
        watch = AsyncWatch(feed, lambda: LiveAction(database, self.action_id), self._threads.read)
        try:
            self._threads.check_outside()
            async with watch, asyncio.timeout(timeout_s):
                async for entry in watch:
                    return result_of(entry)
        except TimeoutError:
            return Err(ActionRunning(NOT_ENDED))
        except LakeSyncError as error:
            return Err(error)
        return Err(ValidationFailed(CLOSED))


class AsyncActions:
    """As `Actions`."""

    def __init__(self, actions: Actions, threads: Threads) -> None:
        self._actions = actions
        self._threads = threads

    async def run(
        self,
        connector: str,
        action: str,
        params: Mapping[str, Any] = _NO_PARAMS,
        *,
        idempotency_key: str = "",
        after_edits: bool = True,
        on_result: Callable[[Ended], object] | None = None,
    ) -> Result[AsyncQueuedAction, LakeSyncError]:
        """As `Actions.run`; ``on_result`` is called in this event loop, and awaited if need be."""
        callback = None if on_result is None else in_this_loop(on_result)
        return await self._queued(
            lambda: self._actions.run(
                connector,
                action,
                params,
                idempotency_key=idempotency_key,
                after_edits=after_edits,
                on_result=callback,
            )
        )

    async def retry(
        self,
        action_id: str,
        *,
        idempotency_key: str = "",
        after_edits: bool = True,
        on_result: Callable[[Ended], object] | None = None,
    ) -> Result[AsyncQueuedAction, LakeSyncError]:
        """As `Actions.retry`; ``on_result`` as in `run`."""
        callback = None if on_result is None else in_this_loop(on_result)
        return await self._queued(
            lambda: self._actions.retry(
                action_id,
                idempotency_key=idempotency_key,
                after_edits=after_edits,
                on_result=callback,
            )
        )

    async def _queued(
        self, queue: Callable[[], Result[QueuedAction, LakeSyncError]]
    ) -> Result[AsyncQueuedAction, LakeSyncError]:
        result = await answered(self._threads.write(queue))
        return result.map(lambda queued: AsyncQueuedAction(queued, self._threads))

    async def find(self, action_id: str) -> Result[AsyncQueuedAction, LakeSyncError]:
        """As `Actions.find`."""
        result = await answered(self._threads.read(lambda: self._actions.find(action_id)))
        return result.map(lambda queued: AsyncQueuedAction(queued, self._threads))

    async def pending(self) -> Result[list[ActionEntry], LakeSyncError]:
        """As `Actions.pending`."""
        return await answered(self._threads.read(self._actions.pending))

    async def dead_letters(self) -> Result[list[ActionEntry], LakeSyncError]:
        """As `Actions.dead_letters`."""
        return await answered(self._threads.read(self._actions.dead_letters))

    async def discard(self, action_id: str) -> Result[ActionEntry, LakeSyncError]:
        """As `Actions.discard`."""
        return await answered(self._threads.write(lambda: self._actions.discard(action_id)))

    async def clear(self) -> Result[int, LakeSyncError]:
        """As `Actions.clear`."""
        return await answered(self._threads.write(self._actions.clear))

    async def send(
        self, *, stopped: Callable[[], bool] = lambda: False
    ) -> Result[ActionSummary, LakeSyncError]:
        """As `Actions.send`; ``stopped`` is asked on another thread."""
        return await answered(
            self._threads.sync(
                lambda given_up: self._actions.send(stopped=lambda: given_up() or stopped())
            )
        )

    async def discover(self) -> Result[dict[str, list[ActionDescription]], LakeSyncError]:
        """As `Actions.discover`."""
        return await answered(self._threads.sync(lambda _: self._actions.discover()))


# --- attachments ----------------------------------------------------------------------------------


class AsyncAttachments:
    """As `Attachments`."""

    def __init__(self, attachments: Attachments, threads: Threads) -> None:
        self._attachments = attachments
        self._threads = threads

    async def add(
        self, source: Source, *, media_type: str = ""
    ) -> Result[Attachment, LakeSyncError]:
        """As `Attachments.add`."""
        return await answered(
            self._threads.write(lambda: self._attachments.add(source, media_type=media_type))
        )

    async def fetch(
        self, table: str, row_id: str, column: str, reference: str | Attachment = ""
    ) -> Result[Path, LakeSyncError]:
        """As `Attachments.fetch`."""
        return await answered(
            self._threads.sync(lambda _: self._attachments.fetch(table, row_id, column, reference))
        )

    async def path(self, reference: str | Attachment) -> Result[Path | None, LakeSyncError]:
        """As `Attachments.path`."""
        return await answered(self._threads.write(lambda: self._attachments.path(reference)))

    async def pending(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """As `Attachments.pending`."""
        return await answered(self._threads.read(self._attachments.pending))

    async def refused(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """As `Attachments.refused`."""
        return await answered(self._threads.read(self._attachments.refused))

    async def retry(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """As `Attachments.retry`."""
        return await answered(self._threads.write(lambda: self._attachments.retry(reference)))

    async def discard(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """As `Attachments.discard`."""
        return await answered(self._threads.write(lambda: self._attachments.discard(reference)))

    async def upload(
        self, *, stopped: Callable[[], bool] = lambda: False
    ) -> Result[UploadSummary, LakeSyncError]:
        """As `Attachments.upload`; ``stopped`` is asked on another thread."""
        return await answered(
            self._threads.sync(
                lambda given_up: self._attachments.upload(stopped=lambda: given_up() or stopped())
            )
        )

    async def evict(self, keep_bytes: int = 0) -> Result[int, LakeSyncError]:
        """As `Attachments.evict`."""
        return await answered(self._threads.write(lambda: self._attachments.evict(keep_bytes)))
