"""A client receives changes: a broadcast that fits its cursor is applied, else it pulls.

Law T1: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.backoff import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.backoff import Waits
    from lakesync.client.live.status import Activity
    from lakesync.client.sync import Syncer
    from lakesync.core.messages import Pull, PullPage


class Hearing:
    """`lakesync.ports.Hearer` for one client.

    Args:
        client_id: the client.
        syncer: applies broadcasts.
        activity: records whether changes are received.
        wake: makes the client sync.
        waits: how long the connection that brings changes waits.
    """

    def __init__(
        self,
        client_id: str,
        syncer: Syncer,
        activity: Activity,
        wake: Callable[[], None],
        waits: Waits = WAITS,
    ) -> None:
        self.client_id = client_id
        self._syncer = syncer
        self._activity = activity
        self._wake = wake
        self.heartbeat_s = waits.heartbeat_s
        self.reconnect_s = waits.reconnect_s
        self.reconnect_s_max = waits.reconnect_s_max

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that fits; returns whether it makes a pull unnecessary."""
        return self._syncer.hear(page)

    def reads_again(self, page: PullPage) -> bool:
        """Return whether a broadcast shows that the next pull reads tables again."""
        return self._syncer.reads_again(page)

    def wake(self) -> None:
        """Sync now."""
        self._wake()

    def next_pull(self) -> Pull:
        """Return the request for one delta behind the cursor."""
        return self._syncer.next_pull()

    def is_current(self, page: PullPage) -> bool:
        """Return whether the answer to `next_pull` shows that nothing was missed."""
        return self._syncer.is_current(page)

    def on_connected(self, *, is_open: bool, reason: str | None = None) -> None:
        """Note whether changes are heard of, and if not, why."""
        self._activity.hears(is_open=is_open, reason=reason)
