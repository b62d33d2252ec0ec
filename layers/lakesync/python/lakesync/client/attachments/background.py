"""Uploads beside a `SyncLoop`, on a thread of their own: a large file keeps no edit waiting.

Rules of this module
    1. The thread exists while something waits to be uploaded, and ends when nothing does, or when
       its loop is stopped.
    2. Every wait ends early when the loop is stopped.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from lakesync.errors import NotOffered
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.attachments.api import Attachments
    from lakesync.errors import LakeSyncError

_log = logging.getLogger("lakesync.client")


class BackgroundUploads:
    """Uploads one client's waiting attachments, whenever there are any.

    Args:
        attachments: the client's.
        backoff_s: gives how long to wait, from the number of failures and the last failure.
    """

    def __init__(
        self, attachments: Attachments, backoff_s: Callable[[LakeSyncError, int], float]
    ) -> None:
        self._attachments = attachments
        self._backoff_s = backoff_s
        self._thread: threading.Thread | None = None

    def start(self, stopped: threading.Event) -> None:
        """Begin if anything waits and no upload is running; called only by the loop's thread."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or stopped.is_set() or not self._attachments.is_waiting():
            return
        self._thread = threading.Thread(
            target=self._run, args=(stopped,), name="lakesync-attachments", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until it ends, after its loop was stopped; returns whether it has."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, timeout_s))
            return not thread.is_alive()
        return True

    def _run(self, stopped: threading.Event) -> None:
        failures = 0
        while not stopped.is_set() and self._attachments.is_waiting():
            try:
                result = self._attachments.upload(stopped=stopped.is_set)
            except Exception:  # noqa: BLE001 - as in the loop
                _log.exception("an upload raised; it is tried again with a later sync")
                return
            if isinstance(result, Err):
                if isinstance(result.error, NotOffered):
                    return
                failures += 1
                stopped.wait(self._backoff_s(result.error, failures))
            else:
                failures = 0
