"""The HTTP routes, one module for each family, and what surrounds each: guard and description.

Each Lambda function serves one family. Routes are built around the service that they call, so that
a module can be imported, and the whole API documented, without a service. Bodies are passed to
`lakesync.wire` as raw bytes: their contents are documented in JSON Schemas, which only `document`
loads, and enforced there.

Before any route's own code: who may call it, and a record of what it is about to change
    1. A route that `lakesync.runtime.auth` does not name cannot be created.
    2. A route below ``/admin/`` with any method except GET changes something: it cannot be created
       without `audited`, which states how to read the state that it changes.
    3. A route below ``/admin/`` refuses parameters that it does not have. Otherwise a misspelt one
       would have the request carried out as if it had not been there.
    4. The record is written before the route is called; if it cannot be written, the route is not
       called.

Laws J1-J3: ``docs/spec/audit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from fastapi import APIRouter
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.routing import APIRoute

from lakesync.core.delta import CLIENT_ID_BYTES_MAX, parse
from lakesync.core.gateway_identity import EPOCH_LENGTH_MAX
from lakesync.errors import InternalError, LakeSyncError, ValidationFailed
from lakesync.gateway.admin_changes import NOT_KNOWN, Who
from lakesync.ports import AuditOutcome
from lakesync.runtime import http, observe
from lakesync.runtime.auth import ALLOWED, EVEN_DELETED, is_gateway
from lakesync.runtime.http import (
    GATEWAY_FORM,
    Encoding,
    caller_in,
    check_query,
    request_id,
    wrong_form,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from fastapi import Request, Response

    from lakesync.gateway.admin_changes import Audit
    from lakesync.ports import AuditRecord
    from lakesync.runtime.auth import Caller

    Serve: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]
    Shows: TypeAlias = "Callable[[Asked], tuple[str, object]]"

# --- guarded routes -------------------------------------------------------------------------------


F = TypeVar("F", bound="Callable[..., Any]")
AUDITED_BODY_BYTES_MAX: Final = 512 * 1024
"""The largest body that is searched for the target of a change: as large as any route accepts."""
_SERVER_FAULT: Final = 500
_SHOWS: Final = "lakesync_shows"
_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a change, as far as it says what is to be changed."""

    gateway: str
    path: Mapping[str, str]
    """The parts of the address that vary."""
    body: object
    """The JSON value that it carries; None if that is none."""

    @property
    def name(self) -> str:
        """What the address names, else what the body does."""
        return self.path.get("name") or self.text("name")

    @property
    def target(self) -> str:
        """The change: its target, and the operation, if the address states it."""
        return f"{self.name} {self.path.get('action', '')}".rstrip()

    def text(self, field: str) -> str:
        """Return a text of the body; empty if there is none."""
        value = self.body.get(field) if isinstance(self.body, dict) else None
        return value if isinstance(value, str) else ""


def audited(shows: Shows) -> Callable[[F], F]:
    """Declare, for a route that changes something, how to read the state that it changes.

    Args:
        shows: gives the target of the change and its state, as plain JSON without secrets; None if
            there is none. It may raise what the route would.
    """

    def marked(endpoint: F) -> F:
        setattr(endpoint, _SHOWS, shows)
        return endpoint

    return marked


def tried(request: Request) -> None:
    """Say of a request that it was a dry run."""
    request.state.tried = True


def guarded_router(**options: Any) -> APIRouter:
    """Return a router whose routes are guarded."""
    return APIRouter(route_class=GuardedRoute, **options)


class GuardedRoute(APIRoute):
    """A route that admits the roles in `ALLOWED`, and leaves a record of what it changes."""

    def get_route_handler(self) -> Serve:
        """Return the function that serves a request."""
        serve: Serve = super().get_route_handler()
        operation = str(self.operation_id)
        if operation not in ALLOWED:
            raise TypeError(f"{self.path}: runtime/auth.py does not say who may ask {operation}")
        shows: Shows | None = getattr(self.endpoint, _SHOWS, None)
        changes = self.path.startswith("/admin/") and bool(set(self.methods or ()) - _READS)
        if changes and shows is None:
            raise TypeError(f"{self.path}: {operation} changes something: mark it `audited`")

        serve = self._checked(serve) if self.path.startswith("/admin/") else serve

        async def guarded(request: Request) -> Response:
            caller = _let_in(request, operation)
            if shows is None:
                return await serve(request)
            return await _recorded(request, caller, operation, shows, serve)

        return guarded

    def _checked(self, serve: Serve) -> Serve:
        """Return what serves requests, but none with a parameter that the route does not have."""
        declared = get_flat_params(self.dependant)
        known = frozenset(one.alias for one in declared if isinstance(one.field_info, Query))

        async def checked(request: Request) -> Response:
            check_query(request.query_params.multi_items(), known)
            return await serve(request)

        return checked


def _let_in(request: Request, operation: str) -> Caller:
    gateway = str(request.path_params["gateway"])
    if not is_gateway(gateway):
        raise wrong_form("gateway", GATEWAY_FORM)
    caller = caller_in(request, gateway, even_deleted=operation in EVEN_DELETED)
    caller.must_be_one_of(ALLOWED[operation])
    return caller


async def _recorded(
    request: Request, caller: Caller, operation: str, shows: Shows, serve: Serve
) -> Response:
    audit: Audit = request.app.state.audit
    gateway = caller.token.gateway
    asked = Asked(gateway, request.path_params, await _body(request))
    target, before = _state(shows, asked)
    who = Who(caller.token.user, caller.token.role, request_id(request.scope))
    record = audit.begin(gateway, who, operation, target or asked.name, before)
    try:
        response = await serve(request)
    except Exception as error:
        outcome, code = _outcome(error)
        _end(audit, record, outcome, code, lambda: _state(shows, asked)[1])
        raise
    was_tried = getattr(request.state, "tried", False)
    outcome = AuditOutcome.TRIED if was_tried else AuditOutcome.DONE
    _end(audit, record, outcome, "", lambda: _state(shows, asked)[1])
    return response


def _outcome(error: Exception) -> tuple[AuditOutcome, str]:
    if isinstance(error, LakeSyncError):
        is_ours = error.status >= _SERVER_FAULT
        return (AuditOutcome.FAILED if is_ours else AuditOutcome.REFUSED), error.code
    if isinstance(error, RequestValidationError):
        return AuditOutcome.REFUSED, ValidationFailed.code
    return AuditOutcome.FAILED, InternalError.code


def _end(
    audit: Audit,
    record: AuditRecord,
    outcome: AuditOutcome,
    code: str,
    after: Callable[[], object],
) -> None:
    """Record a change's outcome; the answer does not depend on it, as the change is made."""
    try:
        state = after()
    except LakeSyncError as error:
        observe.failure(error, audit=record.id)
        state = NOT_KNOWN
    try:
        audit.end(record, outcome, state, code)
    except LakeSyncError as error:
        observe.failure(error, audit=record.id)


def _state(shows: Shows, asked: Asked) -> tuple[str, object]:
    """Return the name and the state of a change's target; nothing if the request is malformed."""
    try:
        return shows(asked)
    except LakeSyncError as error:
        if error.status >= _SERVER_FAULT:
            raise
        return "", None


async def _body(request: Request) -> object:
    coding = request.headers.get("content-encoding")
    try:
        return parse(http.read_body(await request.body(), coding, AUDITED_BODY_BYTES_MAX))
    except LakeSyncError:
        return None  # the route says what is wrong with it


# --- how routes are documented --------------------------------------------------------------------


Schema = dict[str, Any]

NAME: Final[Schema] = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}
SHARD: Final[Schema] = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}
STAMP: Final[Schema] = {
    "type": "string",
    "pattern": "^[0-9]{1,18}$",
    "examples": ["112589990684262400"],
    "description": "A 64-bit stamp as decimal digits.",
}
CLIENT_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": CLIENT_ID_BYTES_MAX}
TEXT: Final[Schema] = {"type": "string"}
EPOCH: Final[Schema] = {"type": "string", "maxLength": EPOCH_LENGTH_MAX}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def object_of(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return an object with these members; others may be there too."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


def list_of(items: Schema, **bounds: int) -> Schema:
    """Return a list of such items."""
    return {"type": "array", "items": items, **bounds}


def reference(name: str) -> Schema:
    """Point to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_ERRORS: Final = {
    400: "A field is missing, malformed or out of its limits.",
    401: "There is no valid token.",
    403: "The token is for another gateway, role or client id.",
    404: "There is nothing at that address.",
    409: "The change does not fit what exists.",
    410: "The log no longer reaches back to the cursor.",
    413: "The request is too large.",
    429: "Too many requests.",
    500: "A bug; report the request id.",
    502: "S3 or SQS refused; try again after `Retry-After` seconds.",
    503: "Not now: try again after `Retry-After` seconds.",
}
# No token at all, a request over API Gateway's own limits, a function that did not answer in time.
_ALSO_BY_GATEWAY: Final = frozenset({401, 413, 429, 500, 503})


def answers(
    name: str,
    description: str,
    *errors: int,
    common: tuple[int, ...] = (400, 401, 403, 429, 503),
    protobuf: bool = False,
) -> dict[int | str, dict[str, Any]]:
    """Document a route's answers: the good one, the common errors, and its own."""
    good = {"description": description, "content": _content(name, protobuf=protobuf)}
    bad: dict[int | str, dict[str, Any]] = {
        status: {"description": _ERRORS[status], "content": _error(status)}
        for status in sorted({*common, *errors, 500})
    }
    return {200: good, **bad}


def binary_answers(kind: str, description: str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """Document the answers of a route whose successful answer is bytes of its own media type."""
    documented = answers("Error", description, *errors)
    documented[200]["content"] = {kind: {"schema": {"type": "string", "format": "binary"}}}
    return documented


def takes(name: str, *, protobuf: bool = False) -> Schema:
    """Document a route's request body."""
    return {"requestBody": {"required": True, "content": _content(name, protobuf=protobuf)}}


def _error(status: int) -> Schema:
    ours = reference("Error")
    if status not in _ALSO_BY_GATEWAY:
        return {Encoding.JSON.value: {"schema": ours}}
    return {Encoding.JSON.value: {"schema": {"anyOf": [ours, reference("GatewayAnswer")]}}}


def _content(name: str, *, protobuf: bool = False) -> Schema:
    content: Schema = {Encoding.JSON.value: {"schema": reference(name)}}
    if protobuf:
        binary = {"type": "string", "format": "binary", "description": "See lakesync.proto."}
        content[Encoding.PROTOBUF.value] = {"schema": binary}
    return content
