"""Kept connections to one address: the part of HTTP that a signed request needs."""

from __future__ import annotations

import select
import weakref
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from lakesync.errors import Unreachable

CONNECT_S_MAX: Final = 1.0
"""How long to wait for a connection."""
READ_S_MAX: Final = 5.0
"""How long to wait for an answer; a transaction takes 10 to 50 ms."""


class Network:
    """Sends requests to one address over kept connections. Thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port
        # Taking from a list and adding to it are atomic, so threads need no lock.
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer.

        Raises:
            Unreachable: no answer arrived; the request may have been carried out.
        """
        return self.request("POST", "/", headers, body)

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer to any request.

        Raises:
            Unreachable: no answer arrived; the request may have been carried out.
        """
        connection = None
        try:
            connection = self._connection()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as exc:
            if connection is not None:
                connection.close()
            raise Unreachable(f"no answer came back: {type(exc).__name__}") from exc
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer.status, content

    def _connection(self) -> HTTPConnection:
        while self._idle:
            connection = self._idle.pop()
            if _is_open(connection):
                return connection
            connection.close()
        connection = self._kind(self._host, self._port, timeout=CONNECT_S_MAX)
        connection.connect()
        connection.sock.settimeout(READ_S_MAX)
        return connection


def _close_all(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _is_open(connection: HTTPConnection) -> bool:
    """Return whether an idle connection may be used: readable data means that it was closed."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
