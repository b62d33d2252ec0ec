"""The handshake of a WebSocket: who refuses it, and no redirect.

websockets follows redirects by itself, whose target would see the token among the sub-protocols.
"""

from __future__ import annotations

from typing import Any

from lakesync.client.transport.answers import error_of


def connection_class(websockets: Any) -> type[Any]:
    """Return websockets' own connection, which tells a refusal as our error; see `error_of`."""
    client, refused = websockets.sync.client.ClientConnection, websockets.exceptions.InvalidStatus

    class Connection(client):  # type: ignore[misc, valid-type]  # imported when it is needed
        def handshake(self, *arguments: Any, **options: Any) -> None:
            try:
                super().handshake(*arguments, **options)
            except refused as exc:
                answer = exc.response
                body = bytes(answer.body or b"")
                raise error_of(answer.status_code, answer.headers, body) from exc

    return Connection
