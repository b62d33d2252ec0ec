"""The interface of what a `SyncLoop` syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from lakesync.client.actions.api import Actions
    from lakesync.client.attachments.api import Attachments
    from lakesync.client.backoff import Waits
    from lakesync.client.modes import Mode
    from lakesync.client.summaries import SyncSummary
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Listening
    from lakesync.result import Result


class Syncs(Protocol):
    """A `Client`."""

    actions: Actions
    attachments: Attachments
    edited: threading.Event

    @property
    def connected(self) -> bool:
        """Return whether it receives changes at once."""
        ...

    def sync(
        self, *, stopped: Callable[[], bool], mode: Mode = "full"
    ) -> Result[SyncSummary, LakeSyncError]:
        """Push, pull and send actions, or what the mode leaves of these."""
        ...

    def listen(self, wake: Callable[[], None], waits: Waits = ...) -> Listening | None:
        """Subscribe to changes."""
        ...

    def register_loop(self, loop: Any) -> None:
        """Note a loop that is to be stopped with the client."""
        ...

    def hurry(self) -> None:
        """Wait no longer with what was stopped on its way: the network may be another one."""
        ...

    def drop_requests(self) -> None:
        """Make current requests fail."""
        ...


class HasClient(Protocol):
    """An `AsyncClient`."""

    @property
    def client(self) -> Syncs:
        """Return the client that it is made of."""
        ...
