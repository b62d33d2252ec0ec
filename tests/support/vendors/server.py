"""A real HTTP server that plays a vendor's: on a port of its own, with faults on demand."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from lakesync.connectors import Outside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


class Asked(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """An answer. A body that is not bytes is sent as JSON."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = {}


class VendorServer:
    """Answers by `answer`, unless a fault is due."""

    port = 0
    """Where it is served; 0 for a port that is free."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.faults: list[Reply | Callable[[Asked], Reply | None]] = []
        """What the next requests are answered with instead; a function may let one pass by None."""
        self.truncates = 0
        """So many of the next answers end in their middle."""
        self.hangs_up_after = 0
        """So many of the next requests are carried out, and get no answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._server.daemon_threads = True
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def outside(self) -> Outside:
        return Outside((self.url,))

    def now_s(self) -> float:
        """Return the vendor's time; its clock may differ from ours."""
        return time.time()

    def answer(self, asked: Asked) -> Reply:
        """Answer a request. A vendor's server says how."""
        raise AssertionError(f"nothing is served at {asked.path}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reply(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            if self.faults:
                fault = self.faults.pop(0)
                reply = fault if isinstance(fault, Reply) else fault(asked)
                if reply is not None:
                    return reply
            return self.answer(asked)


def _handler(server: VendorServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the other side is gone
                self.close_connection = True

        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            named = {name.lower(): value for name, value in self.headers.items()}
            reply = server.reply(
                Asked(self.command, parts.path, dict(parse_qsl(parts.query)), named, body)
            )
            if server.hangs_up_after:
                server.hangs_up_after -= 1
                self.close_connection = True
                return
            self._send(reply)

        def _send(self, reply: Reply) -> None:
            raw = reply.body if isinstance(reply.body, bytes) else (
                b"" if reply.body is None else json.dumps(reply.body).encode()
            )  # fmt: skip
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            if server.truncates and raw:
                server.truncates -= 1
                raw = raw[: len(raw) // 2]
                self.close_connection = True
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(server.now_s() if timestamp is None else timestamp)

    return Handler
