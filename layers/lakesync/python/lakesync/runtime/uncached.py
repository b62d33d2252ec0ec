"""No answer stays in a cache: each is for one caller and one moment, errors and lists included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NOT_CACHED: Final = ("cache-control", "no-store")


class Uncached:
    """Forbids every cache between gateway and client, and a browser's on disk, to keep an answer.

    It wraps a whole app, so no route can forget it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; see ASGI."""

        async def send_uncached(message: Message) -> None:
            if message["type"] == "http.response.start":
                name, value = NOT_CACHED
                MutableHeaders(scope=message)[name] = value
            await send(message)

        await self._app(scope, receive, send_uncached)
