"""A REST catalogue behind a door: some are sent away or put off, and answers get lost."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import httpx

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMIT = re.compile(r"/tables/[^/]+$")
_OF_CONNECTION = frozenset({"connection", "content-length", "host", "transfer-encoding"})


@dataclass
class Door:
    """What is let through to the catalogue, and what comes back."""

    behind: str
    """The catalogue's address."""
    word: str
    """How the header ``Authorization`` has to begin."""
    address: str = ""
    lost: int = 0
    """Commits whose answers are still to be lost, though they are done."""
    let_through: int = 0
    """Requests that still go through before one is put off."""
    put_off: int = 0
    """Requests that are still to be answered with 503, and not done."""
    sent_away: int = 0
    commits: int = 0
    """Those that were answered as done, whether or not the answer arrived."""
    asked: dict[str, str] = field(default_factory=dict)
    """The headers that clients sent last, by their names in small letters."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is two writes, and nobody waits between them
    door: ClassVar[Door]
    client: ClassVar[httpx.Client]

    def _pass(self) -> None:
        door = self.door
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        door.asked.update({name.lower(): value for name, value in self.headers.items()})
        if not self.headers.get("authorization", "").startswith(door.word):
            door.sent_away += 1
            self._answer(401, b"{}", "application/json")
            return
        if self._is_put_off():
            self._answer(503, b"{}", "application/json")
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OF_CONNECTION}
        headers |= {"authorization": "", "accept-encoding": "identity"}
        answer = self.client.request(
            self.command, door.behind + self.path, content=body, headers=headers
        )
        status = answer.status_code
        if self.command == "POST" and _COMMIT.search(self.path) and answer.is_success:
            with door.lock:
                door.commits += 1
                if door.lost:
                    door.lost -= 1
                    status = 504
        content = answer.content if status != 504 else b"{}"
        self._answer(status, content, answer.headers.get("content-type", "application/json"))

    def _is_put_off(self) -> bool:
        door = self.door
        with door.lock:
            is_let_through = door.let_through > 0 or not door.put_off
            door.let_through -= door.let_through > 0
            door.put_off -= not is_let_through
            return not is_let_through

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body)

    do_GET = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 - the names that it looks for

    def log_message(self, *_: object) -> None:
        """A test prints nothing."""


@contextmanager
def door_to(behind: str, word: str) -> Iterator[Door]:
    """Yield the door to a catalogue for as long as the block runs."""
    door = Door(behind, word)
    with (
        httpx.Client(timeout=PATIENCE_S, verify=False) as client,  # noqa: S501 - it is not even encrypted
        ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"door": door, "client": client})
        ) as server,
    ):
        door.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield door
        finally:
            server.shutdown()
            thread.join()
