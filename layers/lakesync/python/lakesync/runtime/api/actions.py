"""Routes of actions: ``POST /sync/{gateway}/action``, ``GET /sync/{gateway}/actions``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response

from lakesync.runtime.api import shapes
from lakesync.runtime.bodies import Encoding, answer_encoding, request_encoding
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import Client, Gateway, answer, body_of
from lakesync.wire import actions_json, actions_proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.actions.permission import Asker
    from lakesync.actions.service import ActionService
    from lakesync.runtime.auth import Caller

ACTION_BODY_BYTES_MAX: Final = 2_097_152
"""A request for actions: as many as may be sent at once, with parameters of the greatest size."""
ANSWER_MS: Final = 28_000
"""How long a request may take from its beginning: API Gateway waits 30 s for a function."""
_DECODE: Final = {
    Encoding.JSON: actions_json.decode_push,
    Encoding.PROTOBUF: actions_proto.decode_push,
}
_ENCODE: Final = {
    Encoding.JSON: actions_json.encode_answers,
    Encoding.PROTOBUF: actions_proto.encode_answers,
}


def action_routes(service: ActionService) -> APIRouter:
    """Return the routes around the service."""
    router = guarded_router(tags=["sync"])

    @router.post(
        "/sync/{gateway}/action",
        summary="Have actions done outside",
        operation_id="runActions",
        response_class=Response,
        responses=shapes.answers(
            "ActionAnswers", "What became of the actions.", 409, 413, protobuf=True
        ),
        openapi_extra=shapes.takes("ActionPush", protobuf=True),
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
        responses=shapes.answers("Actions", "By the names of their handlers."),
    )
    async def actions(gateway: Gateway, client: Client, request: Request) -> Response:
        """Return the actions that the token may run, with the JSON Schema of their parameters."""
        offered = service.discover(gateway, _asker(client))
        return answer(request, actions_json.encode_discovery(offered), Encoding.JSON)

    return router


def _asker(client: Caller) -> Asker:
    from lakesync.actions.permission import Asker  # noqa: PLC0415

    return Asker(client.token.user, client.token.all, client.is_administrator)


def _left_ms(request: Request) -> Callable[[], int]:
    """Get a function that measures the request's remaining time, also by its function's clock."""
    ends_ns = time.monotonic_ns() + ANSWER_MS * 1_000_000
    remaining = getattr(request.scope.get("aws.context"), "get_remaining_time_in_millis", None)

    def left_ms() -> int:
        left = (ends_ns - time.monotonic_ns()) // 1_000_000
        return min(left, remaining()) if remaining else left

    return left_ms
