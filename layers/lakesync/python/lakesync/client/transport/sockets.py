"""The TCP sockets below: requests that are no longer needed are ended, silent ones are probed.

Closing an HTTP client does not wake the thread that waits for its answer; shutting its socket does.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBE_S: Final = 240
"""How long a WebSocket is silent before TCP probes it: routers on the way forget connections that
are silent for five minutes or longer, and API Gateway charges for messages alone.
"""
_PROBE_AGAIN_S: Final = 15
_PROBES: Final = 3
_IDLE: Final = "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE"


def probe_when_silent(opened: socket.socket) -> None:
    """Have TCP probe a silent connection, as far as this platform can; a dead one then fails."""
    options = {_IDLE: PROBE_S, "TCP_KEEPINTVL": _PROBE_AGAIN_S, "TCP_KEEPCNT": _PROBES}
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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
