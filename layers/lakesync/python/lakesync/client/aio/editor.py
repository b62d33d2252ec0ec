"""`AsyncEditor`: what `Editor` offers, awaited; and `AsyncTransaction`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from lakesync.errors import LakeSyncError
from lakesync.result import Err, Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lakesync.client.aio.threads import Threads
    from lakesync.client.storage.editor import Editor
    from lakesync.client.storage.edits import Transaction
    from lakesync.core.delta import Delta

T = TypeVar("T")
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
