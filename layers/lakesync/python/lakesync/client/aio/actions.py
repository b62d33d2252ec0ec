"""`AsyncActions`: what `Actions` offers, awaited: ``client.actions`` of an `AsyncClient`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.actions.results import CLOSED, NOT_ENDED, LiveAction, result_of
from lakesync.client.aio.editor import answered
from lakesync.client.aio.threads import in_this_loop
from lakesync.client.aio.watch import AsyncWatch
from lakesync.errors import ActionRunning, LakeSyncError, ValidationFailed
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.client.actions.api import Actions
    from lakesync.client.actions.entries import ActionEntry
    from lakesync.client.actions.results import QueuedAction
    from lakesync.client.actions.send import ActionSummary
    from lakesync.client.aio.threads import Threads
    from lakesync.core.actions import ActionDescription
    from lakesync.result import Result

    Ended = Result[dict[str, Any], LakeSyncError]

_NOTHING: Final[Mapping[str, Any]] = {}


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
        params: Mapping[str, Any] = _NOTHING,
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
