"""Routes without a token: health, what clients are made of, and addresses that are not served.

The API's own description, and the schema of its messages in protobuf.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from lakesync.errors import NotFound
from lakesync.runtime import api
from lakesync.runtime.api import Gateway, Path, Router
from lakesync.runtime.api.outlets import add_type_route
from lakesync.runtime.http import answer_json, request_id

if TYPE_CHECKING:
    from starlette.requests import Request

    from lakesync.runtime.api.document import Description

UnservedPath = Annotated[str, Path("An address that no function serves.", alias="path")]
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


_SOCKET: Final = (
    "no WebSocket is opened here: they are at {url}, one address for all gateways, and the token "
    "names the gateway. API Gateway closes a connection that sends binary frames (1003), so frames "
    "are JSON or base64 text; see docs/realtime.md, or use HTTP alone"
)


@cache
def _proto() -> bytes:
    from importlib.resources import files  # noqa: PLC0415 - when asked

    return (files("lakesync.wire") / "lakesync.proto").read_bytes()


def open_routes(socket_url: str) -> Router:
    """Return the routes. The rest of the API is imported only when its description is needed.

    Args:
        socket_url: where clients open WebSockets.
    """
    router = Router()

    @cache
    def description() -> Description:
        from lakesync.runtime.api.document import Description  # noqa: PLC0415

        return Description(router)

    @router.get(
        "/health",
        summary="Liveness",
        operation_id="health",
        responses=api.answers("Health", "The API answers.", common=()),
        openapi_extra={"security": []},
    )
    async def health(request: Request) -> Response:
        """Answer that the API works; it asks nothing of what stands behind it."""
        return answer_json(request, {"status": "ok"})

    add_type_route(router)

    @router.get("/openapi.json", include_in_schema=False)
    async def described(request: Request) -> Response:
        return answer_json(request, description().document)

    @router.get("/lakesync.proto", include_in_schema=False)
    async def messages(request: Request) -> Response:
        """Answer the schema as its compilers read it: text."""
        return PlainTextResponse(_proto(), headers={"x-request-id": request_id(request.scope)})

    @router.get("/sync/{gateway}/ws", include_in_schema=False)
    async def socket(gateway: Gateway) -> Response:  # noqa: ARG001 - one address for all of them
        """Tell existing clients where WebSockets are."""
        raise NotFound(_SOCKET.format(url=socket_url))

    async def unserved(path: UnservedPath) -> Response:
        """Refuse a request that no route of API Gateway took; state if only the method is wrong."""
        methods = description().methods_at(f"/{path}")
        if methods:
            raise HTTPException(405, headers={"allow": ", ".join(methods)})
        raise HTTPException(404)

    for method in _METHODS:
        router.add(method, "/{path:path}", include_in_schema=False)(unserved)
    return router
