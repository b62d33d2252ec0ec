"""HTTP for Lambda: bodies, answers, and one boundary where errors become answers.

Every failure is answered through `lakesync.errors`: an error of the tree by its code, a malformed
parameter as VALIDATION_ERROR that names it, an unknown address as NOT_FOUND, and anything
unexpected as INTERNAL_ERROR. An internal failure is answered with the request's id and no detail;
the detail is in the log, under that id.

Bodies: API Gateway hands a body over as text or as base64 (``isBase64Encoded``), as it judges by
the content type. Both are read, with gzip in both directions, always bounded. As text, bytes that
are not UTF-8 cannot arrive: they are dropped or replaced on the way, so that what is compressed is
lost, and anything else may be changed. What shows this is refused; see `check_whole`.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mangum import Mangum
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lakesync.core.delta import parse
from lakesync.errors import (
    BodyTooLarge,
    InternalError,
    InvalidInput,
    LakeSyncError,
    NotFound,
    NotOffered,
    ValidationFailed,
)
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from starlette.requests import Request
    from starlette.routing import Router
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from lakesync.gateway.access import Access
    from lakesync.gateway.admin_changes import Audit

# --- bodies ---------------------------------------------------------------------------------------


GZIP_BYTES_MIN: Final = 1024
"""Smaller answers are sent as they are: compressing them saves no packet."""
GZIP_MEMBERS_MAX: Final = 100
"""Members of one compressed body; senders write one. Each costs a copy of the bytes after it."""
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}".encode()
"""What stands in text for bytes that are not UTF-8; also a character like any other."""
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31


class Encoding(Enum):
    """The two encodings of the protocol's messages."""

    JSON = "application/json"
    PROTOBUF = "application/x-protobuf"


_KNOWN: Final = {encoding.value: encoding for encoding in Encoding}


def request_encoding(content_type: str | None) -> Encoding:
    """Return the encoding of a request's body; JSON if it does not say.

    Raises:
        ValidationFailed: it says something else.
    """
    if not content_type:
        return Encoding.JSON
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _KNOWN:
        raise ValidationFailed(
            f"send {' or '.join(_KNOWN)}, not {kind[:60]!r}", field="Content-Type"
        )
    return _KNOWN[kind]


def answer_encoding(accept: str | None, otherwise: Encoding) -> Encoding:
    """Return the encoding that the caller prefers; ``otherwise`` if any is acceptable."""
    liked = [
        (quality, encoding)
        for kind, quality in _preferences(accept)
        if quality > 0 and (encoding := _KNOWN.get(kind))
    ]
    if not liked:
        return otherwise
    return max(liked, key=lambda choice: choice[0])[1]


def accepts_gzip(accept_encoding: str | None) -> bool:
    """Return whether the caller can read gzip."""
    wishes = dict(_preferences(accept_encoding))
    return wishes.get("gzip", wishes.get("*", 0)) > 0


def _preferences(header: str | None) -> Iterator[tuple[str, float]]:
    for part in (header or "").split(","):
        kind, *parameters = part.split(";")
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "q":
                quality = _quality(value)
        yield kind.strip().lower(), quality


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def encodable(event: dict[str, Any]) -> dict[str, Any]:
    """Return a request's event with a body that has bytes: halves of surrogate pairs have none.

    They stay what they are, which is not UTF-8, so that whoever reads the body refuses it.
    """
    body = event.get("body")
    if not isinstance(body, str) or event.get("isBase64Encoded") or body.isascii():
        return event
    try:
        body.encode()
    except UnicodeEncodeError:
        raw = body.encode("utf-8", "surrogatepass")
        return {**event, "body": base64.b64encode(raw).decode(), "isBase64Encoded": True}
    return event


def check_whole(event: Mapping[str, Any], body: bytes, headers: Mapping[str, str]) -> None:
    """Check that a body that was handed over as text is the one that was sent, where that shows.

    A replacement character may be one that somebody wrote. It stands for lost bytes if the body is
    not as long as its sender says, which it nearly always is not.

    Raises:
        ValidationFailed: it is another.
    """
    if event.get("isBase64Encoded") or not body:
        return
    if headers.get("content-encoding", "identity").strip().lower() not in {"identity", ""}:
        raise ValidationFailed(
            "the compressed body was read as text on its way, and is lost: send it uncompressed, "
            f"or as {Encoding.PROTOBUF.value}",
            field="Content-Encoding",
        )
    length = headers.get("content-length", "")
    if _REPLACED in body and length.isdecimal() and int(length) != len(body):
        raise ValidationFailed("text is not valid UTF-8, and was changed on its way; send UTF-8")


def read_body(body: bytes, content_encoding: str | None, bytes_max: int) -> bytes:
    """Return a request's body, decompressed; never more than ``bytes_max``, whatever it claims.

    Raises:
        BodyTooLarge: it is larger, or would be once decompressed.
        ValidationFailed: its compression is not supported, or it is damaged.
    """
    coding = (content_encoding or "identity").strip().lower()
    if coding not in {"identity", "gzip"}:
        raise ValidationFailed("send the body plain or as gzip", field="Content-Encoding")
    plain = _inflate(body, bytes_max) if coding == "gzip" else body
    if len(plain) > bytes_max:
        raise BodyTooLarge(f"the body may hold {bytes_max} bytes, decompressed; push fewer deltas")
    return plain


def _inflate(body: bytes, bytes_max: int) -> bytes:
    """Decompress, stopping one byte past the limit: a bomb costs no more than an honest body."""
    inflated: list[bytes] = []
    room = bytes_max + 1
    rest = body
    try:
        while rest and room > 0:
            if len(inflated) == GZIP_MEMBERS_MAX:
                raise ValidationFailed(
                    f"the gzip body has over {GZIP_MEMBERS_MAX} members; compress it as one",
                    field="Content-Encoding",
                )
            member = zlib.decompressobj(_GZIP_WINDOW)
            inflated.append(member.decompress(rest, room))
            room -= len(inflated[-1])
            if not member.eof and room > 0:
                raise ValidationFailed("the gzip body ends too early")
            rest = member.unused_data
    except zlib.error as exc:
        raise ValidationFailed(f"the body is not gzip: {exc}", field="Content-Encoding") from exc
    return b"".join(inflated)


def compressed(body: bytes) -> bytes:
    """Compress an answer, for speed rather than size, as the function's time is the cost."""
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


# --- no answer is cached --------------------------------------------------------------------------


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


# --- what routes ask for --------------------------------------------------------------------------


ANSWER_BYTES_MAX: Final = 4_300_000
"""Lambda answers at most 6 MB, in which a binary body is base64: a third larger."""
_METHOD_NOT_ALLOWED: Final = 405


async def body_of(request: Request, bytes_max: int) -> bytes:
    """Return the request's body, decompressed.

    Raises:
        BodyTooLarge: it is over ``bytes_max``.
        ValidationFailed: its compression is unknown or damaged, or it came changed.
    """
    body, headers = await request.body(), request.headers
    check_whole(event_of(request.scope), body, headers)
    return read_body(body, headers.get("content-encoding"), bytes_max)


async def json_body(request: Request, wanted: str, bytes_max: int) -> object:
    """Return the JSON value that a request carries.

    Raises:
        ValidationFailed: it is invalid (``wanted`` states what is expected), or declared as
            another.
        BodyTooLarge: it is over ``bytes_max``.
    """
    if request_encoding(request.headers.get("content-type")) is not Encoding.JSON:
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


def answer(request: Request, body: bytes, encoding: Encoding) -> Response:
    """Return a successful response, compressed if the caller accepts that and it is worth it.

    A response too large for Lambda is compressed in any case: a commit is never split.
    """
    headers = {"x-request-id": request_id(request.scope), "vary": "accept, accept-encoding"}
    reads_gzip = accepts_gzip(request.headers.get("accept-encoding"))
    is_worth_it = reads_gzip and len(body) >= GZIP_BYTES_MIN
    if is_worth_it or len(body) > ANSWER_BYTES_MAX:
        body = compressed(body)
        headers["content-encoding"] = "gzip"
    return Response(body, media_type=encoding.value, headers=headers)


def answer_json(request: Request, value: Mapping[str, object]) -> Response:
    """Return a successful response of plain JSON values."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return answer(request, text.encode(), Encoding.JSON)


# --- the app --------------------------------------------------------------------------------------


def create_app(
    *routers: Router, access: Access | None = None, audit: Audit | None = None
) -> Starlette:
    """Return an app that serves the routers with and without the ``/v1`` prefix.

    Args:
        routers: what it serves.
        access: admits callers; without it no route that requires a caller can be served.
        audit: records changes; without it no route for changes by administrators is served.
    """
    app = Starlette()
    app.router.redirect_slashes = False
    app.state.access = access
    app.state.audit = audit
    for router in routers:
        app.router.routes.extend(router.routes)
    app.add_exception_handler(LakeSyncError, _on_error)
    app.add_exception_handler(HTTPException, _on_unserved)
    app.add_middleware(_Boundary)
    app.add_middleware(Uncached)
    return app


def lambda_handler(app: Starlette) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return the function's handler: one request in, one response out, metrics written."""
    served = Mangum(app, lifespan="off")

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        return served(encodable(event), context)

    return handler


def request_id(scope: Scope) -> str:
    """Return the request's id: API Gateway's, so that its access log and ours can be joined."""
    if "lakesync.request_id" not in scope:
        given = event_of(scope).get("requestContext", {}).get("requestId")
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
    if isinstance(error, InvalidInput) and error.faults:
        body["faults"] = [{"path": fault.path, "error": fault.message} for fault in error.faults]
    headers = {"x-request-id": body["requestId"]}
    if error.retry_after_s:
        headers["retry-after"] = str(error.retry_after_s)
    text = json.dumps(body, separators=(",", ":"))
    return Response(text, error.status, headers, Encoding.JSON.value)


def event_of(scope: Scope) -> dict[str, Any]:
    """Return what API Gateway handed over for a request."""
    event: dict[str, Any] = scope.get("aws.event") or {}
    return event


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LakeSyncError)  # noqa: S101 - what it was registered for
    observe.failure(error, method=request.method, path=request.url.path)
    return error_answer(request.scope, error)


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
