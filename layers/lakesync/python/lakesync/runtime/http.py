"""FastAPI apps for Lambda: one boundary where errors become answers.

Every failure is answered through `lakesync.errors`: an error of the tree by its code, a malformed
parameter as VALIDATION_ERROR that names it, an unknown address as NOT_FOUND, and anything
unexpected as INTERNAL_ERROR. An internal failure is answered with the request's id and no detail;
the detail is in the log, under that id.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from mangum import Mangum
from starlette.exceptions import HTTPException

from lakesync.core.values import parse
from lakesync.errors import (
    FaultsNamed,
    InternalError,
    LakeSyncError,
    NotFound,
    NotOffered,
    ValidationFailed,
)
from lakesync.runtime import bodies, observe
from lakesync.runtime.auth import Caller, caller_of
from lakesync.runtime.parameters import GATEWAY_FORM, malformed
from lakesync.runtime.uncached import Uncached

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from lakesync.gateway.access import Access
    from lakesync.gateway.audit import Audit

ANSWER_BYTES_MAX: Final = 4_300_000
"""Lambda answers at most 6 MB, in which a binary body is base64: a third larger."""
_METHOD_NOT_ALLOWED: Final = 405


# --- what routes ask for --------------------------------------------------------------------------

Gateway = Annotated[str, Path(description="The gateway's id.", pattern=GATEWAY_FORM)]


async def client_of_gateway(request: Request, gateway: Gateway) -> Caller:
    """Return the caller, who has a currently valid token for the gateway in the path."""
    return caller_in(request, gateway)


def caller_in(request: Request, gateway: str, *, even_deleted: bool = False) -> Caller:
    """Return who asks, proved to hold a token for the gateway that is valid now.

    Args:
        request: the request.
        gateway: the id in its path.
        even_deleted: admit the caller even if the gateway was deleted.

    Raises:
        LakeSyncError: see `lakesync.runtime.auth.caller_of`.
    """
    context = _event(request.scope).get("requestContext", {}).get("authorizer", {}).get("lambda")
    access = request.app.state.access
    return caller_of(context, gateway, time.time(), access, even_deleted=even_deleted)


ClientId = Annotated[
    str | None,
    Query(alias="clientId", description="Whose answer it is; the token's `sub` if left out."),
]

Client = Annotated[Caller, Depends(client_of_gateway)]


async def client_even_of_deleted(request: Request, gateway: Gateway) -> Caller:
    """Return the caller, of a gateway that may have been deleted."""
    return caller_in(request, gateway, even_deleted=True)


EvenOfDeleted = Annotated[Caller, Depends(client_even_of_deleted)]


async def body_of(request: Request, bytes_max: int) -> bytes:
    """Return the request's body, decompressed.

    Raises:
        BodyTooLarge: it is over ``bytes_max``.
        ValidationFailed: its compression is unknown or damaged, or it came changed.
    """
    body, headers = await request.body(), request.headers
    bodies.check_whole(_event(request.scope), body, headers)
    return bodies.read_body(body, headers.get("content-encoding"), bytes_max)


async def json_body(request: Request, wanted: str, bytes_max: int) -> object:
    """Return the JSON value that a request carries.

    Raises:
        ValidationFailed: it is invalid (``wanted`` states what is expected), or declared as
            another.
        BodyTooLarge: it is over ``bytes_max``.
    """
    if bodies.request_encoding(request.headers.get("content-type")) is not bodies.Encoding.JSON:
        raise ValidationFailed(wanted, field="Content-Type")
    value: object = parse(await body_of(request, bytes_max))
    try:
        # JSON can spell halves of surrogate pairs, which no answer could carry.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise ValidationFailed(
            "text holds half of a surrogate pair; send whole characters"
        ) from exc
    return value


def answer(request: Request, body: bytes, encoding: bodies.Encoding) -> Response:
    """Return a successful response, compressed if the caller accepts that and it is worth it.

    A response too large for Lambda is compressed in any case: a commit is never split.
    """
    headers = {"x-request-id": request_id(request.scope), "vary": "accept, accept-encoding"}
    reads_gzip = bodies.accepts_gzip(request.headers.get("accept-encoding"))
    is_worth_it = reads_gzip and len(body) >= bodies.GZIP_BYTES_MIN
    if is_worth_it or len(body) > ANSWER_BYTES_MAX:
        body = bodies.compressed(body)
        headers["content-encoding"] = "gzip"
    return Response(body, media_type=encoding.value, headers=headers)


def answer_json(request: Request, value: Mapping[str, object]) -> Response:
    """Return a successful response of plain JSON values."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return answer(request, text.encode(), bodies.Encoding.JSON)


# --- the app --------------------------------------------------------------------------------------


def create_app(
    *routers: APIRouter, access: Access | None = None, audit: Audit | None = None
) -> FastAPI:
    """Return an app that serves the routers with and without the ``/v1`` prefix.

    Args:
        routers: what it serves.
        access: admits callers; without it no route that requires a caller can be served.
        audit: records changes; without it no route for changes by administrators is served.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.access = access
    app.state.audit = audit
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(LakeSyncError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_unserved)
    app.add_middleware(_Boundary)
    app.add_middleware(Uncached)
    return app


def lambda_handler(app: FastAPI) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return the function's handler: one request in, one response out, metrics written."""
    served = Mangum(app, lifespan="off")

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        try:
            return served(bodies.encodable(event), context)
        finally:
            observe.publish()

    return handler


def request_id(scope: Scope) -> str:
    """Return the request's id: API Gateway's, so that its access log and ours can be joined."""
    if "lakesync.request_id" not in scope:
        given = _event(scope).get("requestContext", {}).get("requestId")
        scope["lakesync.request_id"] = str(given or uuid4())
    return str(scope["lakesync.request_id"])


def error_answer(scope: Scope, error: LakeSyncError) -> Response:
    """Return the response for an error of the tree; without details if the failure is internal."""
    body: dict[str, Any] = {
        "error": error.public_message or error.message,
        "code": error.code,
        "requestId": request_id(scope),
    }
    if error.field and not error.public_message:
        body["field"] = error.field
    if isinstance(error, FaultsNamed):
        body["faults"] = [{"path": fault.path, "error": fault.message} for fault in error.faults]
    headers = {"x-request-id": body["requestId"]}
    if error.retry_after_s:
        headers["retry-after"] = str(error.retry_after_s)
    text = json.dumps(body, separators=(",", ":"))
    return Response(text, error.status, headers, bodies.Encoding.JSON.value)


def _event(scope: Scope) -> dict[str, Any]:
    event: dict[str, Any] = scope.get("aws.event") or {}
    return event


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LakeSyncError)  # noqa: S101 - what it was registered for
    observe.failure(error, method=request.method, path=request.url.path)
    return error_answer(request.scope, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - what it was registered for
    return error_answer(request.scope, malformed(error.errors()[0]))


async def _on_unserved(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - what it was registered for
    if error.status_code != _METHOD_NOT_ALLOWED:
        return error_answer(request.scope, NotFound("there is no such address"))
    wrong_method = NotOffered("this address is served, but not with that method")
    response = error_answer(request.scope, wrong_method)
    response.headers.update(error.headers or {})
    return response


class _Boundary:
    """The last word on every request: nothing escapes it as an exception."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/v1/"):
            scope["path"] = scope["path"].removeprefix("/v1")
        observe.logger.set_correlation_id(request_id(scope))
        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the boundary: logged, counted, answered
            observe.bug(error, method=scope["method"], path=scope["path"])
            await error_answer(scope, InternalError("logged as a bug"))(scope, receive, send)
