"""`SyncLoop`: sync in the background, soon after each edit, patiently when the network is away."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Final

from lakesync.errors import LakeSyncError, Retry
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from lakesync.client.client import Client
    from lakesync.client.summaries import SyncSummary

BACKOFF_S_MIN: Final = 1.0
BACKOFF_S_MAX: Final = 300.0
"""The longest wait after failures, unless the gateway asks for longer."""


class SyncLoop:
    """Syncs one client from a thread of its own, until it is stopped.

    ::

        with SyncLoop(client, every_s=30):
            run_the_app()

    Args:
        client: the client; the app goes on using it, and closes it after the loop has ended.
        every_s: how often to look for news, in seconds, while all goes well. An edit is pushed at
            once. After a failure the wait doubles from `BACKOFF_S_MIN` to `BACKOFF_S_MAX`, with
            jitter, and is never shorter than what the gateway asked for.
        on_result: hears each result, on the loop's thread; it must not raise.
        chance: a random number in [0, 1).
    """

    def __init__(
        self,
        client: Client,
        *,
        every_s: float = 30.0,
        on_result: Callable[[Result[SyncSummary, LakeSyncError]], None] = lambda _: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._every_s = every_s
        self._on_result = on_result
        self._chance = chance
        self._stop = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="lakesync", daemon=True)

    def start(self) -> None:
        """Begin syncing; once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the request that is under way; safe to repeat."""
        self._stop.set()
        self._client.edited.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            # Cleared before the sync, not after: an edit made meanwhile is worth another round.
            self._client.edited.clear()
            if self._stop.is_set():
                return
            result = self._client.sync()
            self._on_result(result)
            match result:
                case Ok():
                    self._failures = 0
                    self._client.edited.wait(self._every_s)
                case Err(error):
                    self._failures += 1
                    # Edits do not shorten this wait: they would fare like the last ones.
                    self._stop.wait(self.backoff_s(error))

    def backoff_s(self, error: LakeSyncError) -> float:
        """Give how long to wait after a failure: "full jitter", so that clients spread out."""
        if error.retry is Retry.NEVER:
            return BACKOFF_S_MAX
        ceiling = min(BACKOFF_S_MAX, BACKOFF_S_MIN * (1 << min(self._failures, 16)))
        return max(self._chance() * ceiling, float(error.retry_after_s))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
