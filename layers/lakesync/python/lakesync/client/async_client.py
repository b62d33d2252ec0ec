"""`AsyncClient`: `Client` for asyncio, the same names, awaited, over the same implementation.

::

    async with AsyncClient("app.db", client_id="phone-1", transport=transport) as client:
        (await client.insert("todos", "t1", {"title": "Buy milk"})).unwrap()
        async for rows in client.watch("SELECT * FROM todos"):
            show(rows)

It is a `Client` whose operations run on threads of its own: each name here is `forwarded` to the
method that it names. Changes are reported to an app as `Observable` does, in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from lakesync.client.app_actions import (
    CLOSED,
    NOT_ENDED,
    Actions,
    LiveAction,
    QueuedAction,
    result_of,
)
from lakesync.client.app_attachments import Attachments
from lakesync.client.async_threads import Threads, in_this_loop
from lakesync.client.change_feed import Subscriber, Unchanged
from lakesync.client.client import Client
from lakesync.client.loop import EVERY_S, unheard
from lakesync.client.storage.editor import Editor, Transaction
from lakesync.client.waits import WAITS, never
from lakesync.errors import ActionRunning, LakeSyncError, ValidationFailed
from lakesync.result import Err, Result

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from lakesync.client.change_feed import Callback, ChangeFeed, Changes, Reading
    from lakesync.client.client_status import ClientStatus
    from lakesync.client.loop import SyncLoop
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.misuse import Mode
    from lakesync.client.sync import SyncSummary
    from lakesync.client.waits import Waits
    from lakesync.ports import Transport

    Ended = Result[dict[str, Any], LakeSyncError]
    Asked = Callable[[], bool]
    Thread = Literal["reads", "writes", "syncs"]

T = TypeVar("T")
P = ParamSpec("P")
Blocking = TypeVar("Blocking")
Blocking_co = TypeVar("Blocking_co", covariant=True)

# --- forwarded methods ----------------------------------------------------------------------------


class Awaited(Generic[Blocking_co]):
    """What has the methods of another object, each `forwarded` to one of its threads."""

    def __init__(self, blocking: Blocking_co, threads: Threads) -> None:
        self._blocking = blocking
        self._threads = threads

    async def _forward(
        self, thread: Thread, operation: Callable[[Asked], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]:
        """Run what may ask whether it is given up; what could not even begin is an ``Err`` too."""
        try:
            return await self._on(thread, operation)
        except LakeSyncError as error:
            return Err(error)

    async def _on(self, thread: Thread, operation: Callable[[Asked], T]) -> T:
        if thread == "syncs":
            return await self._threads.sync(operation)
        run = self._threads.read if thread == "reads" else self._threads.write
        return await run(lambda: operation(never))


def forwarded(
    thread: Thread,
    method: Callable[Concatenate[Blocking, P], Result[T, LakeSyncError]],
) -> Callable[Concatenate[Awaited[Blocking], P], Coroutine[Any, Any, Result[T, LakeSyncError]]]:
    """Return a method with the same parameters and docstring that is awaited.

    Once its task is cancelled, or the client closes, the work ends as if ``stopped`` were true.
    """
    can_stop = "stopped" in (getattr(method, "__kwdefaults__", None) or ())

    @functools.wraps(method)
    async def forward(
        self: Awaited[Blocking], /, *args: P.args, **kwargs: P.kwargs
    ) -> Result[T, LakeSyncError]:
        def operation(given_up: Asked) -> Result[T, LakeSyncError]:
            if can_stop:
                stopped: Any = kwargs.get("stopped", never)
                kwargs["stopped"] = lambda: given_up() or stopped()
            return method(self._blocking, *args, **kwargs)

        return await self._forward(thread, operation)

    return forward


# --- watches --------------------------------------------------------------------------------------


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


# --- edits, actions, attachments ------------------------------------------------------------------


EditorT_co = TypeVar("EditorT_co", bound=Editor, covariant=True)


class AsyncEditor(Awaited[EditorT_co]):
    """What a client and its transaction both offer: reads, and edits; an ``Err`` wrote nothing."""

    insert = forwarded("writes", Editor.insert)
    upsert = forwarded("writes", Editor.upsert)
    update = forwarded("writes", Editor.update)
    delete = forwarded("writes", Editor.delete)
    insert_many = forwarded("writes", Editor.insert_many)
    execute = forwarded("writes", Editor.execute)
    get = forwarded("reads", Editor.get)

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
        blocking = self._blocking
        return await self._forward("reads", lambda _: blocking.query(sql, parameters, as_=as_))


class AsyncTransaction(AsyncEditor[Transaction]):
    """The edits of one ``async with client.transaction() as tx``; as `Transaction`."""

    run_action = forwarded("writes", Transaction.run_action)

    async def _on(self, thread: Thread, operation: Callable[[Asked], T]) -> T:
        del thread  # a transaction stays on the thread that writes, whose turn it has
        return await self._threads.in_turn(lambda: operation(never))


class AsyncQueuedAction(Awaited[QueuedAction]):
    """As `QueuedAction`; any number of tasks may wait for one."""

    def __init__(self, queued: QueuedAction, threads: Threads) -> None:
        super().__init__(queued, threads)
        self.action_id = queued.action_id

    entry = forwarded("reads", QueuedAction.entry)

    async def result(self, timeout_s: float | None = None) -> Ended:
        """As `QueuedAction.result`."""
        database, feed = self._blocking.database, self._blocking.feed
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


def _queued(
    thread: Thread,
    method: Callable[Concatenate[Actions, P], Result[QueuedAction, LakeSyncError]],
) -> Callable[
    Concatenate[AsyncActions, P], Coroutine[Any, Any, Result[AsyncQueuedAction, LakeSyncError]]
]:
    """As `forwarded`; ``on_result`` is called in the event loop, and awaited if need be."""
    forward = forwarded(thread, method)

    @functools.wraps(method)
    async def queued(
        self: AsyncActions, /, *args: P.args, **kwargs: P.kwargs
    ) -> Result[AsyncQueuedAction, LakeSyncError]:
        on_result: Any = kwargs.get("on_result")
        if on_result is not None:
            kwargs["on_result"] = in_this_loop(on_result)
        result = await forward(self, *args, **kwargs)
        return result.map(lambda queued: AsyncQueuedAction(queued, self._threads))

    return queued


class AsyncActions(Awaited[Actions]):
    """As `Actions`; ``on_result`` is called in this event loop, and awaited if need be."""

    run = _queued("writes", Actions.run)
    retry = _queued("writes", Actions.retry)
    find = _queued("reads", Actions.find)
    pending = forwarded("reads", Actions.pending)
    dead_letters = forwarded("reads", Actions.dead_letters)
    discard = forwarded("writes", Actions.discard)
    clear = forwarded("writes", Actions.clear)
    send = forwarded("syncs", Actions.send)
    discover = forwarded("syncs", Actions.discover)


class AsyncAttachments(Awaited[Attachments]):
    """As `Attachments`."""

    add = forwarded("writes", Attachments.add)
    fetch = forwarded("syncs", Attachments.fetch)
    path = forwarded("writes", Attachments.path)
    pending = forwarded("reads", Attachments.pending)
    refused = forwarded("reads", Attachments.refused)
    retry = forwarded("writes", Attachments.retry)
    discard = forwarded("writes", Attachments.discard)
    upload = forwarded("syncs", Attachments.upload)
    evict = forwarded("writes", Attachments.evict)


# --- the client -----------------------------------------------------------------------------------


class AsyncStatus:
    """A `ClientStatus` to be awaited: it is read from the file, on another thread."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, ClientStatus]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, Any, ClientStatus]:
        return self._read().__await__()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the status is awaited first: (await client.status).{name}")


class AsyncClient(AsyncEditor[Client]):
    """One client and its file, for any number of tasks of one event loop.

    Args, and what is raised: as `Client`. ``client`` is that client, for other threads of the app.

    An operation that is cancelled before its turn does not happen; one that has begun is completed.
    A cancelled sync stops after the request in flight. What a method is given to ask (``stopped``)
    is asked on another thread.
    """

    def __init__(
        self, path: str | Path, *, client_id: str, transport: Transport, **options: Any
    ) -> None:
        self.client = Client(path, client_id=client_id, transport=transport, **options)
        self.client_id = client_id
        super().__init__(self.client, Threads())
        self.actions = AsyncActions(self.client.actions, self._threads)
        self.attachments = AsyncAttachments(self.client.attachments, self._threads)

    declare = forwarded("writes", Client.declare)
    schema = forwarded("reads", Client.schema)
    sql_name = forwarded("reads", Client.sql_name)
    pending = forwarded("reads", Client.pending)
    quarantined = forwarded("reads", Client.quarantined)
    retry = forwarded("writes", Client.retry)
    amend = forwarded("writes", Client.amend)
    discard = forwarded("writes", Client.discard)
    clear_outbox = forwarded("writes", Client.clear_outbox)
    connector_types = forwarded("syncs", Client.connector_types)
    rebind = forwarded("syncs", Client.rebind)
    conflicts = forwarded("reads", Client.conflicts)
    resolve = forwarded("writes", Client.resolve)
    wipe = forwarded("writes", Client.wipe)
    """Close the client afterwards, to end its threads."""
    push = forwarded("syncs", Client.push)
    pull = forwarded("syncs", Client.pull)
    forget_source = forwarded("syncs", Client.forget_source)
    sync = forwarded("syncs", Client.sync)

    @overload
    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        tables: Iterable[str] | None = ...,
    ) -> AsyncWatch[list[dict[str, Any]]]: ...

    @overload
    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        tables: Iterable[str] | None = ...,
        as_: type[T],
    ) -> AsyncWatch[list[T]]: ...

    def watch(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        tables: Iterable[str] | None = None,
        as_: type[Any] = dict,
    ) -> AsyncWatch[list[Any]]:
        """As `Client.watch`, for ``async for``; a wrong query is refused by the first step."""
        client = self.client
        query = client._live_query  # noqa: SLF001 - the two are one
        prepare = lambda: query(sql, parameters, tables, as_)  # noqa: E731
        return AsyncWatch(client._feed, prepare, self._threads.read)  # noqa: SLF001

    def watch_status(self) -> AsyncWatch[ClientStatus]:
        """As `Client.watch_status`, for ``async for``."""
        client = self.client
        return AsyncWatch(client._feed, client._live_status, self._threads.read)  # noqa: SLF001

    def on_change(
        self,
        callback: Callable[[frozenset[str]], object],
        tables: Iterable[str] | None = None,
    ) -> Callback:
        """As `Client.on_change`; called in this event loop, and awaited if it is a coroutine."""
        return self.client.on_change(in_this_loop(callback), tables)

    def on_conflict(
        self, callback: Callable[[LostWrite], object], tables: Iterable[str] | None = None
    ) -> Callback:
        """As `Client.on_conflict`; called in this event loop, and awaited if it is a coroutine."""
        return self.client.on_conflict(in_this_loop(callback), tables)

    @property
    def status(self) -> AsyncStatus:
        """The sync status: ``(await client.status).pending``."""
        return AsyncStatus(self._status)

    @property
    def connected(self) -> bool:
        """As `Client.connected`."""
        return self.client.connected

    async def _status(self) -> ClientStatus:
        try:
            return await self._threads.read(lambda: self.client.status)
        except LakeSyncError:  # closed: then it waits for nothing
            return self.client.status

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """Make edits one transaction, as `Client.transaction`; ``await tx.insert(...)``.

        Other tasks that write wait until it ends. In this task, and in tasks that it starts,
        waiting would deadlock, so such operations are refused with ``TRANSACTION_OPEN``.

        Raises:
            LakeSyncError: an edit failed, or the commit did; or ``TRANSACTION_OPEN``.
        """
        threads = self._threads
        threads.check_outside()
        async with threads.turn:
            block = self.client.transaction()
            try:
                transaction = await threads.in_turn(block.__enter__)
            except asyncio.CancelledError as exc:
                # It may have begun nevertheless: then it is undone before anything else happens.
                threads.behind(lambda exc=exc: _end(block, exc))  # type: ignore[misc]
                raise
            threads.enter_block()
            try:
                yield AsyncTransaction(transaction, threads)
            except BaseException as exc:
                await asyncio.shield(threads.in_turn(lambda exc=exc: _end(block, exc)))  # type: ignore[misc]
                raise
            else:
                await asyncio.shield(threads.in_turn(lambda: block.__exit__(None, None, None)))
            finally:
                threads.leave_block()

    def connect(
        self,
        *,
        every_s: float = EVERY_S,
        mode: Mode = "full",
        waits: Waits = WAITS,
        on_result: Callable[[Result[SyncSummary, LakeSyncError]], object] = unheard,
    ) -> SyncLoop:
        """As `Client.connect`; ``on_result`` is called in this event loop, awaited if necessary."""
        hear = on_result if on_result is unheard else in_this_loop(on_result)
        return self.client.connect(every_s=every_s, mode=mode, waits=waits, on_result=hear)

    async def close(self) -> None:
        """Stop syncing as `SyncLoop.stop` does, and let running operations end; safe to repeat."""
        self.client._feed.close()  # noqa: SLF001 - what waits for changes need not wait longer
        await asyncio.shield(self._threads.close(self.client.close, self.client.drop_requests))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _end(block: contextlib.AbstractContextManager[object], exc: BaseException) -> None:
    with contextlib.suppress(BaseException):
        block.__exit__(type(exc), exc, exc.__traceback__)
