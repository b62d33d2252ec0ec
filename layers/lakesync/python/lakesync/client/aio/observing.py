"""Reports an `AsyncClient`'s changes to an app, as `Observable` does, in the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from lakesync.client.aio.editor import AsyncEditor
from lakesync.client.aio.threads import in_this_loop
from lakesync.client.aio.watch import AsyncWatch
from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence

    from lakesync.client.aio.threads import Threads
    from lakesync.client.client import Client
    from lakesync.client.live.callbacks import Callback
    from lakesync.client.live.status import ClientStatus
    from lakesync.client.storage.conflicts import LostWrite

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
