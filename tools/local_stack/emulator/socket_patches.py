"""WebSocket APIs as AWS runs them: sub-protocols, refusals, authorizers without sources."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[[dict[str, Any]], Awaitable[None]]

_DEFAULT_SOURCE = ["$request.header.Authorization"]
AWS_API_HOST = re.compile(
    r"^([a-f0-9]{8})\.execute-api\.(?:localhost|[a-z0-9-]+\.amazonaws\.com(?:\.cn)?)(?::\d+)?$"
)
HTTP_FAULT = 400
_connected: ContextVar[dict[str, Any]] = ContextVar("connected")


def answer_handshakes() -> None:
    """AWS: `$connect` chooses the sub-protocol, and its status is what a refused client sees.

    The emulator accepts without a sub-protocol, so that a browser gives up, and refuses with 403.
    """
    gateway = emulator_module("ministack.services.apigateway")
    invoke, handle = gateway._invoke_ws_lambda, gateway.handle_websocket

    async def remember(*args: Any, **kwargs: Any) -> Any:
        answer = await invoke(*args, **kwargs)
        if args[6] == "CONNECT":
            _connected.set(answer or {})
        return answer

    async def handle_with_answer(
        scope: dict[str, Any], receive: Any, send: Send, *args: Any, **kwargs: Any
    ) -> None:
        _connected.set({})
        await handle(scope, receive, _answering(scope, send), *args, **kwargs)

    gateway._invoke_ws_lambda = remember
    gateway.handle_websocket = handle_with_answer


def know_apis_by_their_host() -> None:
    """AWS: an API is told by its own host name, whichever endpoint a request comes through.

    The emulator knows APIs by names under its own host alone.
    """
    app = emulator_module("ministack.app")
    app._EXECUTE_API_RE = AWS_API_HOST


def authorise_without_identity_sources() -> None:
    """AWS: a WebSocket authorizer that names no identity source is always asked.

    The emulator takes it to name the header of HTTP APIs, and refuses who does not send that.
    """
    gateway = emulator_module("ministack.services.apigateway")
    original = gateway._authorize_ws_connect

    async def authorise(api_id: str, route: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        authorizer = gateway._authorizers.get(api_id, {}).get(route.get("authorizerId") or "")
        if authorizer and authorizer.get("identitySource") == _DEFAULT_SOURCE:
            authorizer["identitySource"] = []
        return await original(api_id, route, *args, **kwargs)

    gateway._authorize_ws_connect = authorise


def know_answers_of_templates() -> None:
    """AWS: a template declares what API Gateway answers by itself, without a function.

    The emulator answers, but its CloudFormation refuses the two kinds of resource.
    """
    gateway = emulator_module("ministack.services.apigateway")
    handlers = emulator_module("ministack.services.cloudformation.provisioners")._RESOURCE_HANDLERS
    for owner, create, kept in (
        ("Integration", gateway._create_integration_response, gateway._integration_responses),
        ("Route", gateway._create_route_response, gateway._route_responses),
    ):
        handler = _answer_handlers(f"{owner}Id", create, kept)
        handlers[f"AWS::ApiGatewayV2::{owner}Response"] = handler


def _answer_handlers(owner: str, create: Callable[..., Any], kept: Any) -> dict[str, Any]:
    """Return how CloudFormation creates, updates and deletes what API Gateway answers."""

    def of(props: dict[str, Any]) -> tuple[str, str]:
        # A route's reference has its API's before it.
        return props["ApiId"], props[owner].split("/")[-1]

    def create_answer(_name: str, props: dict[str, Any], _stack: str) -> tuple[str, dict[str, Any]]:
        status, _, body = create(*of(props), as_request(props))
        if status >= HTTP_FAULT:
            raise ValueError(f"{owner} of an answer: {body!r}")
        answer = json.loads(body)
        return next(value for name, value in answer.items() if name.endswith("ResponseId")), {}

    def update(
        name: str, old: dict[str, Any], new: dict[str, Any], stack: str
    ) -> tuple[str, dict[str, Any]]:
        delete(name, old)
        return create_answer(name, new, stack)

    def delete(name: str, props: dict[str, Any]) -> None:
        api, owned_by = of(props)
        kept.get(api, {}).get(owned_by, {}).pop(name, None)

    return {"create": create_answer, "update": update, "delete": delete}


def as_request(props: dict[str, Any]) -> dict[str, Any]:
    """Return a template's properties as API Gateway's own requests name them."""
    return {name[0].lower() + name[1:]: value for name, value in props.items()}


def _answering(scope: dict[str, Any], send: Send) -> Send:
    """What is sent to a client, with the answer of its `$connect` in the handshake."""
    is_open = False

    async def answer(message: dict[str, Any]) -> None:
        nonlocal is_open
        connected = _connected.get({})
        if message["type"] == "websocket.accept":
            is_open = True
            headers = {
                name.lower(): value for name, value in (connected.get("headers") or {}).items()
            }
            message = accepted(message, headers)
        elif message["type"] == "websocket.close" and not is_open and connected:
            is_open = True
            if "websocket.http.response" in (scope.get("extensions") or {}):
                await send(
                    {
                        "type": "websocket.http.response.start",
                        "status": int(connected.get("statusCode", 500)),
                        "headers": [(b"content-type", b"application/json")],
                    }
                )
                body = json.dumps({"message": "Forbidden"}).encode()
                message = {"type": "websocket.http.response.body", "body": body}
        await send(message)

    return answer


def accepted(message: dict[str, Any], headers: dict[str, Any]) -> dict[str, Any]:
    """The message that accepts a handshake, with the sub-protocol that the headers choose."""
    chosen = headers.get("sec-websocket-protocol")
    return message | {"subprotocol": chosen} if chosen else message
