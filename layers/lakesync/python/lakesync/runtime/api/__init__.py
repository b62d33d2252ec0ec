"""The HTTP routes, one module for each family, and what they share: parameters, guard, description.

Each Lambda function serves one family. Routes are built around the service that they call, so that
a module can be imported, and the whole API documented, without a service. Bodies are passed to
`lakesync.wire` as raw bytes: their contents are documented in JSON Schemas, which only `document`
loads, and enforced there.

A route is declared by its endpoint, whose signature names what it asks of a request; see `Route`.
Starlette serves it, and FastAPI documents it (`lakesync.runtime.api.document`), which takes longer
to import than all that a push needs: ADR 39.

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

import inspect
import re
import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_type_hints

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from lakesync.core.delta import CLIENT_ID_BYTES_MAX, parse
from lakesync.core.gateway_identity import EPOCH_LENGTH_MAX
from lakesync.errors import InternalError, LakeSyncError, ValidationFailed
from lakesync.ports import AuditOutcome
from lakesync.runtime import http, observe
from lakesync.runtime.auth import (
    ALLOWED,
    EVEN_DELETED,
    GATEWAY_ID,
    Caller,
    caller_of,
    is_gateway,
)
from lakesync.runtime.http import Encoding, request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from lakesync.gateway.admin_changes import Audit
    from lakesync.ports import AuditRecord

    Serve = Callable[[Request], Awaitable[Response]]
    Shows = Callable[["Asked"], tuple[str, object]]

# --- parameters -----------------------------------------------------------------------------------


GATEWAY_FORM: Final = f"^{GATEWAY_ID}$"
NAME_FORM: Final = "^[A-Za-z0-9_-]{1,64}$"
TABLE_FORM: Final = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
STAMP_FORM: Final = "^[0-9]{1,19}$"
CHECKPOINT_FORM: Final = "^[0-9a-f]{16}-[0-9a-f]{16}$"
_FORMS: Final = {
    GATEWAY_FORM: "an id of letters, digits, _ and -, at most 64",
    NAME_FORM: "a name of letters, digits, _ and -, at most 64",
    TABLE_FORM: "a table's name: letters, digits and _, at most 64, no digit first",
    STAMP_FORM: "a stamp: a decimal string",
    CHECKPOINT_FORM: "the `X-Checkpoint-Id` of an answer",
}
"""What each ``pattern`` of a parameter allows, in words."""
_TRUE: Final = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE: Final = frozenset({"0", "false", "f", "no", "n", "off"})
_SPACE: Final = r"[^\S\x1c-\x1f]*"
_WHOLE: Final = re.compile(rf"{_SPACE}([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?{_SPACE}")
_DIGITS_MAX: Final = 4_300


@dataclass(eq=False)
class Query:
    """A parameter of the query: what an endpoint's ``Annotated`` argument says of it."""

    description: str
    _: KW_ONLY
    alias: str = ""
    """Its name in a request, where that differs from the argument's."""
    pattern: str | None = None
    max_length: int | None = None
    ge: int | None = None
    le: int | None = None
    lt: int | None = None


class Path(Query):
    """A part of the path that varies."""


class Parameter:
    """One parameter of a route, read as its argument is annotated: text, a whole number, a flag."""

    def __init__(self, argument: inspect.Parameter, kind: object, declared: Query) -> None:
        self.argument, self.kind, self.declared = argument, kind, declared
        self.name = declared.alias or argument.name
        kinds = {kind, *get_args(kind)}
        self._convert = _flag if bool in kinds else _whole if int in kinds else _text
        self._form = re.compile(declared.pattern) if declared.pattern else None

    def read(self, request: Request) -> object:
        """Return its value in a request, or its default.

        Raises:
            ValidationFailed: it is not as it was declared.
        """
        is_path = isinstance(self.declared, Path)
        given = (request.path_params if is_path else request.query_params).get(self.name)
        if given is None:
            return self.argument.default
        value = self._convert(self.name, given)
        limits = self.declared
        if self._form is not None and self._form.fullmatch(given) is None:
            raise wrong_form(self.name, self._form.pattern)
        if limits.max_length is not None and len(given) > limits.max_length:
            raise _must_be(self.name, f"at most {limits.max_length:,} characters long")
        if limits.ge is not None and value < limits.ge:
            raise _must_be(self.name, f"at least {limits.ge:,}")
        if limits.le is not None and value > limits.le:
            raise _must_be(self.name, f"at most {limits.le:,}")
        if limits.lt is not None and value >= limits.lt:
            raise _must_be(self.name, f"less than {limits.lt:,}")
        return value


def _text(_: str, given: str) -> Any:
    return given


def _flag(name: str, given: str) -> Any:
    if given.lower() in _TRUE:
        return True
    if given.lower() in _FALSE:
        return False
    raise _must_be(name, "true or false")


def _whole(name: str, given: str) -> Any:
    number = _WHOLE.fullmatch(given)
    if number is None:
        raise _must_be(name, "a whole number")
    if len(number[1]) > _DIGITS_MAX:
        raise _must_be(name, "a smaller number")
    return int(number[1])


def _must_be(name: str, wanted: str) -> ValidationFailed:
    return ValidationFailed(f"{name} must be {wanted}", field=name)


def check_query(given: Iterable[tuple[str, str]], known: Collection[str]) -> None:
    """Refuse a query with a parameter that its address does not have, or that it has twice.

    Raises:
        ValidationFailed: it names the parameter, and those that there are.
    """
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            there = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ValidationFailed(
                f"this address has no parameter {name[:64]}; {there}", field=name[:64]
            )
        if name in seen:
            raise ValidationFailed(f"{name} was given twice; give it once", field=name)
        seen.add(name)


def wrong_form(name: str, form: str) -> ValidationFailed:
    """Return the refusal of a parameter that is not of one of the forms of this module."""
    return _must_be(name, _FORMS[form])


Gateway = Annotated[str, Path("The gateway's id.", pattern=GATEWAY_FORM)]
ClientId = Annotated[
    str | None, Query("Whose answer it is; the token's `sub` if left out.", alias="clientId")
]

# --- routes ---------------------------------------------------------------------------------------


F = TypeVar("F", bound="Callable[..., Any]")
_CALLER: Final = "lakesync.caller"
_FOR_TYPES: Final = {each.__name__: each for each in (Request, Response, Caller)}
"""Names in the annotations of endpoints that their modules import for types alone."""


class Route:
    """One method of one path, and the endpoint that answers it.

    Args:
        method: of HTTP.
        path: with ``{name}`` for each part that varies.
        endpoint: answers. It gets its arguments by name: a `Request`, the `Caller` whom the guard
            let in, and parameters, ``Annotated`` with `Path` or `Query`.
        documented: how FastAPI describes it; see ``fastapi.routing.APIRoute``.
    """

    def __init__(
        self, method: str, path: str, endpoint: Callable[..., Any], documented: dict[str, Any]
    ) -> None:
        self.method, self.path, self.endpoint, self.documented = method, path, endpoint, documented
        self.operation = str(documented.get("operation_id"))
        self.parameters: list[Parameter] = []
        self._injected: list[tuple[str, type]] = []
        hints = get_type_hints(endpoint, localns=_FOR_TYPES, include_extras=True)
        for argument in inspect.signature(endpoint).parameters.values():
            hint = hints[argument.name]
            if hint in {Request, Caller}:
                self._injected.append((argument.name, hint))
            else:
                kind, declared = get_args(hint)
                self.parameters.append(Parameter(argument, kind, declared))

    async def serve(self, request: Request) -> Response:
        """Call the endpoint with what it asks of a request.

        Raises:
            ValidationFailed: a parameter is not as it was declared.
        """
        asked = {each.argument.name: each.read(request) for each in self.parameters}
        for name, kind in self._injected:
            asked[name] = request if kind is Request else request.scope[_CALLER]
        response: Response = await self.endpoint(**asked)
        return response


class Router(routing.Router):
    """Routes of one family.

    Args:
        guard: returns what serves a route, in place of the route itself.
    """

    def __init__(self, guard: Callable[[Route], Serve] | None = None) -> None:
        self._guard = guard
        super().__init__()
        self.declared: list[Route] = []

    def add(self, method: str, path: str, **documented: Any) -> Callable[[F], F]:
        """Return what adds an endpoint; see `Route`."""

        def added(endpoint: F) -> F:
            route = Route(method, path, endpoint, documented)
            self.declared.append(route)
            serve = self._guard(route) if self._guard else route.serve
            served = routing.Route(path, serve, methods=[method])
            served.methods = {method}  # no HEAD beside GET
            self.routes.append(served)
            return endpoint

        return added

    def get(self, path: str, **documented: Any) -> Callable[[F], F]:
        """Return what adds an endpoint for GET."""
        return self.add("GET", path, **documented)

    def post(self, path: str, **documented: Any) -> Callable[[F], F]:
        """Return what adds an endpoint for POST."""
        return self.add("POST", path, **documented)

    def delete(self, path: str, **documented: Any) -> Callable[[F], F]:
        """Return what adds an endpoint for DELETE."""
        return self.add("DELETE", path, **documented)


# --- guarded routes -------------------------------------------------------------------------------


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


def guarded_router() -> Router:
    """Return a router whose routes admit the roles in `ALLOWED`, and record what they change."""
    return Router(_guarded)


def _guarded(route: Route) -> Serve:
    operation, is_admin = route.operation, route.path.startswith("/admin/")
    if operation not in ALLOWED:
        raise TypeError(f"{route.path}: runtime/auth.py does not say who may ask {operation}")
    shows: Shows | None = getattr(route.endpoint, _SHOWS, None)
    if is_admin and route.method not in _READS and shows is None:
        raise TypeError(f"{route.path}: {operation} changes something: mark it `audited`")
    known = {one.name for one in route.parameters if not isinstance(one.declared, Path)}

    async def serve(request: Request) -> Response:
        if is_admin:
            check_query(request.query_params.multi_items(), known)
        return await route.serve(request)

    async def guarded(request: Request) -> Response:
        caller = _let_in(request, operation)
        if shows is None:
            return await serve(request)
        return await _recorded(request, caller, operation, shows, serve)

    return guarded


def _let_in(request: Request, operation: str) -> Caller:
    """Return who asks, proved to hold a token for the gateway that is valid now; endpoints get it.

    Raises:
        LakeSyncError: see `lakesync.runtime.auth.caller_of`; or the role may not ask this.
    """
    gateway = str(request.path_params["gateway"])
    if not is_gateway(gateway):
        raise wrong_form("gateway", GATEWAY_FORM)
    context = http.event_of(request.scope).get("requestContext", {}).get("authorizer", {})
    access, even_deleted = request.app.state.access, operation in EVEN_DELETED
    caller = caller_of(
        context.get("lambda"), gateway, time.time(), access, even_deleted=even_deleted
    )
    caller.must_be_one_of(ALLOWED[operation])
    request.scope[_CALLER] = caller
    return caller


async def _recorded(
    request: Request, caller: Caller, operation: str, shows: Shows, serve: Serve
) -> Response:
    from lakesync.gateway.admin_changes import Who  # noqa: PLC0415 - of administrators' requests

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
    return AuditOutcome.FAILED, InternalError.code


def _end(
    audit: Audit,
    record: AuditRecord,
    outcome: AuditOutcome,
    code: str,
    after: Callable[[], object],
) -> None:
    """Record a change's outcome; the answer does not depend on it, as the change is made."""
    from lakesync.gateway.admin_changes import NOT_KNOWN  # noqa: PLC0415 - as above

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
    "pattern": "^[0-9]{1,19}$",
    "examples": ["112589990684262400"],
    "description": "A stamp below 2^63 as decimal digits: more than a double holds.",
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
        binary = {"type": "string", "format": "binary", "description": "See /lakesync.proto."}
        content[Encoding.PROTOBUF.value] = {"schema": binary}
    return content
