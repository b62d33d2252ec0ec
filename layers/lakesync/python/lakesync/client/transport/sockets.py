"""The sockets of an HTTP client, so that a request that is no longer needed can be ended.

Closing an HTTP client does not wake the thread that waits for its answer; shutting its socket does.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class OpenSockets:
    """Notes the sockets that httpx opens: ``extensions={"trace": sockets.note}`` of a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Hear of an event of httpcore's."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            opened = info["return_value"].get_extra_info("socket")
            if isinstance(opened, socket.socket):
                with self._lock:
                    self._sockets.add(opened)

    def shut(self) -> None:
        """Abort all requests on all connections; new requests open new ones."""
        with self._lock:
            for opened in list(self._sockets):
                # Not TLS's own shutdown, which would take the state from the reading thread.
                with contextlib.suppress(OSError):  # closed
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)
