"""`AsyncClient`: `Client` for asyncio, the same names, awaited, over the same implementation.

::

    async with AsyncClient("app.db", client_id="phone-1", transport=transport) as client:
        (await client.insert("todos", "t1", {"title": "Buy milk"})).unwrap()
        async for rows in client.watch("SELECT * FROM todos"):
            show(rows)

It is a `Client` whose operations run on threads of its own. Changes are reported to an app as
`Observable` does, in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, overload

from lakesync.client.async_editor import (
    AsyncActions,
    AsyncAttachments,
    AsyncEditor,
    AsyncTransaction,
    AsyncWatch,
    answered,
)
from lakesync.client.async_threads import Threads, in_this_loop
from lakesync.client.client import Client
from lakesync.client.device_time import WAITS
from lakesync.client.loop import EVERY_S, unheard
from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from lakesync.client.change_feed import Callback
    from lakesync.client.client_status import ClientStatus
    from lakesync.client.device_time import Waits
    from lakesync.client.loop import SyncLoop
    from lakesync.client.misuse import Mode
    from lakesync.client.resync import KeepEdits
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.device_tables import DeclaredColumns
    from lakesync.client.storage.outbox import OutboxEntry
    from lakesync.client.storage.own_writes import Keep
    from lakesync.client.sync import PullSummary, SyncSummary
    from lakesync.client.upload import PushSummary
    from lakesync.core.delta import Delta
    from lakesync.core.schema import TableSchema
    from lakesync.ports import ConnectorDescription, Transport
    from lakesync.result import Result

# --- what it reports ------------------------------------------------------------------------------


T = TypeVar("T")


class AsyncStatus:
    """A `ClientStatus` to be awaited: it is read from the file, on another thread."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, ClientStatus]]) -> None:
        self._read = read

    def __await__(self) -> Generator[Any, Any, ClientStatus]:
        return self._read().__await__()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the status is awaited first: (await client.status).{name}")


class AsyncObservable(AsyncEditor):
    """The part of an `AsyncClient` that others observe."""

    client: Client
    _threads: Threads

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


# --- the client -----------------------------------------------------------------------------------


class AsyncClient(AsyncObservable):
    """One client and its file, for any number of tasks of one event loop.

    Args, and what is raised: as `Client`. ``client`` is that client, for other threads of the app.

    An operation that is cancelled before its turn does not happen; one that has begun is completed.
    A cancelled sync stops after the request in flight.
    """

    def __init__(
        self, path: str | Path, *, client_id: str, transport: Transport, **options: Any
    ) -> None:
        self.client = Client(path, client_id=client_id, transport=transport, **options)
        self.client_id = client_id
        self._blocking = self.client
        self._threads = Threads()
        self.actions = AsyncActions(self.client.actions, self._threads)
        self.attachments = AsyncAttachments(self.client.attachments, self._threads)

    async def _write(
        self, operation: Callable[[], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]:
        return await answered(self._threads.write(operation))

    async def _read(
        self, operation: Callable[[], Result[T, LakeSyncError]]
    ) -> Result[T, LakeSyncError]:
        return await answered(self._threads.read(operation))

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

    async def declare(
        self, table: str, columns: DeclaredColumns, *, indexes: Sequence[Sequence[str]] = ()
    ) -> Result[None, LakeSyncError]:
        """As `Client.declare`."""
        return await self._write(lambda: self.client.declare(table, columns, indexes=indexes))

    async def schema(self, table: str) -> Result[TableSchema | None, LakeSyncError]:
        """As `Client.schema`."""
        return await self._read(lambda: self.client.schema(table))

    async def sql_name(
        self, table: str, column: str | None = None
    ) -> Result[str | None, LakeSyncError]:
        """As `Client.sql_name`."""
        return await self._read(lambda: self.client.sql_name(table, column))

    async def pending(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """As `Client.pending`."""
        return await self._read(self.client.pending)

    async def quarantined(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """As `Client.quarantined`."""
        return await self._read(self.client.quarantined)

    async def retry(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """As `Client.retry`."""
        return await self._write(lambda: self.client.retry(delta_id))

    async def amend(
        self, delta_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """As `Client.amend`."""
        return await self._write(lambda: self.client.amend(delta_id, columns))

    async def discard(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """As `Client.discard`."""
        return await self._write(lambda: self.client.discard(delta_id))

    async def clear_outbox(self) -> Result[int, LakeSyncError]:
        """As `Client.clear_outbox`."""
        return await self._write(self.client.clear_outbox)

    async def connector_types(self) -> Result[list[ConnectorDescription], LakeSyncError]:
        """As `Client.connector_types`."""
        return await answered(self._threads.sync(lambda _: self.client.connector_types()))

    async def rebind(self, keep: KeepEdits) -> Result[int, LakeSyncError]:
        """As `Client.rebind`."""
        return await answered(self._threads.sync(lambda _: self.client.rebind(keep)))

    async def conflicts(self) -> Result[list[LostWrite], LakeSyncError]:
        """As `Client.conflicts`."""
        return await self._read(self.client.conflicts)

    async def resolve(
        self, conflict_id: int, keep: Keep, value: object = None
    ) -> Result[Delta | None, LakeSyncError]:
        """As `Client.resolve`."""
        return await self._write(lambda: self.client.resolve(conflict_id, keep, value))

    async def wipe(self, *, lose_edits: bool = False) -> Result[None, LakeSyncError]:
        """As `Client.wipe`; close the client afterwards, to end its threads."""
        return await self._write(lambda: self.client.wipe(lose_edits=lose_edits))

    async def push(self) -> Result[PushSummary, LakeSyncError]:
        """As `Client.push`."""
        return await answered(self._threads.sync(lambda _: self.client.push()))

    async def pull(
        self, *, source: str | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> Result[PullSummary, LakeSyncError]:
        """As `Client.pull`; ``stopped`` is asked on another thread."""
        return await answered(
            self._threads.sync(
                lambda given_up: self.client.pull(
                    source=source, stopped=lambda: given_up() or stopped()
                )
            )
        )

    async def forget_source(self, source: str) -> Result[None, LakeSyncError]:
        """As `Client.forget_source`."""
        return await answered(self._threads.sync(lambda _: self.client.forget_source(source)))

    async def sync(
        self, *, stopped: Callable[[], bool] = lambda: False, mode: Mode = "full"
    ) -> Result[SyncSummary, LakeSyncError]:
        """As `Client.sync`; ``stopped`` is asked on another thread."""
        return await answered(
            self._threads.sync(
                lambda given_up: self.client.sync(
                    stopped=lambda: given_up() or stopped(), mode=mode
                )
            )
        )

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
    """Undo a transaction because of an exception, which the caller raises again."""
    with contextlib.suppress(BaseException):
        block.__exit__(type(exc), exc, exc.__traceback__)
