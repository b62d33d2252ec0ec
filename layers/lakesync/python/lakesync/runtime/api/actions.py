"""Routes of actions: clients run them and list them, administrators register their handlers.

Clients: ``POST /sync/{gateway}/action``, ``GET /sync/{gateway}/actions``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from lakesync.runtime.api import openapi
from lakesync.runtime.guard import audited, guarded_router
from lakesync.runtime.http import (
    NAME_FORM,
    Client,
    Encoding,
    Gateway,
    answer,
    answer_encoding,
    answer_json,
    body_of,
    json_body,
    request_encoding,
)
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.actions.registrations import Asker
    from lakesync.actions.service import ActionAdmin, ActionService
    from lakesync.runtime.auth import Caller
    from lakesync.runtime.guard import Asked

# --- running --------------------------------------------------------------------------------------


ACTION_BODY_BYTES_MAX: Final = 2_097_152
"""A request for actions: as many as may be sent at once, with parameters of the greatest size."""
ANSWER_MS: Final = 28_000
"""How long a request may take from its beginning: API Gateway waits 30 s for a function."""
_DECODE: Final = {
    Encoding.JSON: jsonish.decode_action_push,
    Encoding.PROTOBUF: proto.decode_action_push,
}
_ENCODE: Final = {
    Encoding.JSON: jsonish.encode_answers,
    Encoding.PROTOBUF: proto.encode_answers,
}


def action_routes(service: ActionService) -> APIRouter:
    """Return the routes around the service."""
    router = guarded_router(tags=["sync"])

    @router.post(
        "/sync/{gateway}/action",
        summary="Have actions done outside",
        operation_id="runActions",
        response_class=Response,
        responses=openapi.answers(
            "ActionAnswers", "What became of the actions.", 409, 413, protobuf=True
        ),
        openapi_extra=openapi.takes("ActionPush", protobuf=True),
    )
    async def run(gateway: Gateway, client: Client, request: Request) -> Response:
        """Run actions one after another, each with its own answer, and each once. Safe to repeat.

        An action that is `retryable` is sent again unchanged, with the same `actionId`; anything
        else is final.
        """
        left_ms = _left_ms(request)
        sent = request_encoding(request.headers.get("content-type"))
        push = _DECODE[sent](await body_of(request, ACTION_BODY_BYTES_MAX))
        client.speaks_for(push.client_id)
        answers = service.push(gateway, _asker(client), push, left_ms)
        reads = answer_encoding(request.headers.get("accept"), otherwise=sent)
        return answer(request, _ENCODE[reads](answers), reads)

    @router.get(
        "/sync/{gateway}/actions",
        summary="The actions that the caller may run",
        operation_id="actions",
        response_class=Response,
        responses=openapi.answers("Actions", "By the names of their handlers."),
    )
    async def actions(gateway: Gateway, client: Client, request: Request) -> Response:
        """Return the actions that the token may run, with the JSON Schema of their parameters."""
        offered = service.discover(gateway, _asker(client))
        return answer(request, jsonish.encode_discovery(offered), Encoding.JSON)

    return router


def _asker(client: Caller) -> Asker:
    from lakesync.actions.registrations import Asker  # noqa: PLC0415

    return Asker(client.token.user, client.token.all, client.is_administrator)


def _left_ms(request: Request) -> Callable[[], int]:
    """Get a function that measures the request's remaining time, also by its function's clock."""
    ends_ns = time.monotonic_ns() + ANSWER_MS * 1_000_000
    remaining = getattr(request.scope.get("aws.context"), "get_remaining_time_in_millis", None)

    def left_ms() -> int:
        left = (ends_ns - time.monotonic_ns()) // 1_000_000
        return min(left, remaining()) if remaining else left

    return left_ms


# --- handlers -------------------------------------------------------------------------------------


HANDLER_BODY_BYTES_MAX: Final = 512 * 1024
"""An action handler with all the actions and permissions that it may have."""
Name = Annotated[str, Path(description="The handler's name.", pattern=NAME_FORM)]


def add_action_routes(router: APIRouter, service: Callable[[], ActionAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        every = service().all(asked.gateway)
        return asked.name, next((each for each in every if each["name"] == asked.name), None)

    @router.post(
        "/admin/actions/{gateway}",
        tags=["admin"],
        summary="Register an action handler",
        operation_id="registerActionHandler",
        response_class=Response,
        responses=openapi.answers("ActionHandlerAdded", "Clients may run it.", 404, 409, 413, 502),
        openapi_extra=openapi.takes("ActionHandler"),
    )
    @audited(shows)
    async def register(gateway: Gateway, request: Request) -> Response:
        """Register an action handler, and who may run which actions. Secrets are never returned."""
        from lakesync.actions.registrations import registration_from  # noqa: PLC0415 - when asked

        body = await json_body(request, "an action handler is JSON", HANDLER_BODY_BYTES_MAX)
        wanted = registration_from(body)
        actions = service().register(gateway, wanted)
        return answer_json(request, {"registered": True, "name": wanted.name, "actions": actions})

    @router.get(
        "/admin/actions/{gateway}",
        tags=["admin"],
        summary="The action handlers, and who may run what",
        operation_id="actionHandlers",
        response_class=Response,
        responses=openapi.answers("ActionHandlers", "Without secrets."),
    )
    async def handlers(gateway: Gateway, request: Request) -> Response:
        """Return all action handlers as they were registered, without secrets."""
        return answer_json(request, {"handlers": service().all(gateway)})

    @router.delete(
        "/admin/actions/{gateway}/{name}",
        tags=["admin"],
        summary="Remove an action handler; what it ran stays done",
        operation_id="removeActionHandler",
        response_class=Response,
        responses=openapi.answers("Unregistered", "Nobody runs it any more.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Remove an action handler, with its secrets."""
        service().remove(gateway, name)
        return answer_json(request, {"unregistered": True, "name": name})
