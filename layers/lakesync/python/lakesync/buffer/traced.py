"""Shows each DynamoDB call in the trace of the invocation that makes it.

Lambda begins the trace, names it in an environment variable that also says whether it is sampled,
and receives its segments by UDP. The X-Ray SDK does no more than this for a call, but adds a tenth
of a second to every cold start. It only knows calls of the AWS SDK, and is only maintained.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from typing import TYPE_CHECKING, Final

from lakesync.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE: Final = "_X_AMZN_TRACE_ID"
"""Lambda's variable: ``Root=…;Parent=…;Sampled=1``, different for each invocation."""
DAEMON: Final = "AWS_XRAY_DAEMON_ADDRESS"
"""Lambda's variable: the address to which segments are sent, ``address:port``."""
_HEADER: Final = b'{"format": "json", "version": 1}\n'
_THROTTLED: Final = frozenset({b"ProvisionedThroughputExceeded", b"ThrottlingException"})
_BAD_REQUEST: Final = 400
_SERVER_FAULT: Final = 500


class TracedSend:
    """Sends requests, and traces its calls if the invocation is sampled. Thread-safe."""

    def __init__(
        self, send: Callable[[dict[str, str], bytes], tuple[int, bytes]], region: str
    ) -> None:
        self._send = send
        self._region = region
        self._socket: socket.socket | None = None

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Send, and trace the duration and the outcome."""
        trace = _sampled_trace()
        if trace is None:
            return self._send(headers, body)
        began = time.time()
        status, content = 0, b""
        try:
            status, content = self._send(headers, body)
        except Unreachable:
            self._report(trace, headers, began, {"fault": True})
            raise
        self._report(trace, headers, began, _outcome(status, content))
        return status, content

    def _report(
        self,
        trace: tuple[str, str],
        headers: dict[str, str],
        began: float,
        outcome: dict[str, object],
    ) -> None:
        root, parent = trace
        operation = headers["X-Amz-Target"].rpartition(".")[2]
        document = {
            "name": "DynamoDB",
            "id": os.urandom(8).hex(),
            "trace_id": root,
            "parent_id": parent,
            "type": "subsegment",
            "namespace": "aws",
            "start_time": began,
            "end_time": time.time(),
            "aws": {"operation": operation, "region": self._region},
            **outcome,
        }
        address, _, port = os.environ.get(DAEMON, "").rpartition(":")
        try:
            if self._socket is None:
                self._socket = _open()
                weakref.finalize(self, self._socket.close)
            self._socket.sendto(_HEADER + json.dumps(document).encode(), (address, int(port)))
        except (OSError, ValueError):
            pass  # a trace never justifies a failed request


def _open() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _sampled_trace() -> tuple[str, str] | None:
    """Return the trace and the segment that a call belongs to; None if it is not sampled."""
    text = os.environ.get(TRACE)
    if not text or DAEMON not in os.environ:
        return None
    fields = dict(part.partition("=")[::2] for part in text.split(";"))
    if fields.get("Sampled") != "1" or not fields.get("Root") or not fields.get("Parent"):
        return None
    return fields["Root"], fields["Parent"]


def _outcome(status: int, content: bytes) -> dict[str, object]:
    """Return the outcome of a call, in X-Ray's terms."""
    outcome: dict[str, object] = {"http": {"response": {"status": status}}}
    if status >= _SERVER_FAULT:
        outcome["fault"] = True
    elif status >= _BAD_REQUEST:
        outcome["error"] = True
        outcome["throttle"] = any(word in content for word in _THROTTLED)
    return outcome
