"""Routes of what clients hand over: pushes, attachments, and actions with their handlers.

``POST /sync/{gateway}/push``; ``POST /sync/{gateway}/attachments`` and ``…/attachments/download``;
``POST /sync/{gateway}/action``, ``GET /sync/{gateway}/actions``. Administrators register the
handlers of actions.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from lakesync.errors import ValidationFailed
from lakesync.ports import Usage
from lakesync.runtime import api, observe
from lakesync.runtime.api import NAME_FORM, Gateway, Path, Router, audited, guarded_router
from lakesync.runtime.http import (
    Encoding,
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

    from starlette.requests import Request
    from starlette.responses import Response

    from lakesync.actions.engine import Asker
    from lakesync.actions.service import ActionAdmin, ActionService
    from lakesync.compat.follower_deltas import FollowingPushes
    from lakesync.gateway.access import Quotas
    from lakesync.gateway.attachments import AttachmentService
    from lakesync.gateway.push import PushService
    from lakesync.ports import SignedRequest, UploadState
    from lakesync.runtime.api import Asked
    from lakesync.runtime.auth import Caller

# --- pushes ---------------------------------------------------------------------------------------


_DECODE: Final = {Encoding.JSON: jsonish.decode_push, Encoding.PROTOBUF: proto.decode_push}
_ENCODE: Final = {Encoding.JSON: jsonish.encode_receipt, Encoding.PROTOBUF: proto.encode_receipt}


def push_routes(
    service: PushService | FollowingPushes, quotas: Quotas, *, body_bytes_max: int
) -> Router:
    """Return the route around the service, which is called within the gateway's quota."""
    router = guarded_router()

    @router.post(
        "/sync/{gateway}/push",
        summary="Hand deltas over",
        operation_id="push",
        responses=api.answers("PushReceipt", "What became of the deltas.", 409, 413, protobuf=True),
        openapi_extra=api.takes("Push", protobuf=True),
    )
    async def push(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Make deltas durable, each accepted or refused by itself. Safe to repeat.

        Deltas that the receipt counts as accepted are on disk in several zones. `results` names the
        deltas that were not simply accepted, each with its reason.
        """
        sent = request_encoding(request.headers.get("content-type"))
        quotas.check(gateway)
        body = await body_of(request, body_bytes_max)
        wanted = _DECODE[sent](body)
        client.speaks_for(wanted.client_id)
        usage = Usage(1, len(wanted.deltas) + len(wanted.unreadable), len(body))
        quotas.use(gateway, usage)
        judged = replace(wanted, claims=client.token.all)
        receipt = service.push(gateway, judged)
        observe.count("DeltasAccepted", receipt.accepted)
        reads = answer_encoding(request.headers.get("accept"), otherwise=sent)
        answered = _ENCODE[reads](receipt)
        observe.usage(gateway, usage, bytes_out=len(answered))
        return answer(request, answered, reads)

    return router


# --- attachments ----------------------------------------------------------------------------------


ATTACHMENT_BODY_BYTES_MAX: Final = 65_536
"""A request about an attachment, with the digests of as many parts as there may be."""
_WANTED: Final = "send a JSON object, as Content-Type: application/json"


def attachment_routes(service: Callable[[], AttachmentService], quotas: Quotas) -> Router:
    """Return the routes around a factory of the service, called within the gateway's quota."""
    router = guarded_router()

    @router.post(
        "/sync/{gateway}/attachments",
        summary="Upload an attachment, or continue an upload",
        operation_id="uploadAttachment",
        responses=api.answers(
            "AttachmentUploadState", "How far it is, and what to send next.", 409, 410, 413, 502
        ),
        openapi_extra=api.takes("AttachmentUpload"),
    )
    async def upload(gateway: Gateway, request: Request) -> Response:
        """Return signed requests for the parts that are missing: send them, and ask again.

        It is done when the answer says `stored`. Safe to repeat, and to interrupt and resume days
        later. Each request counts as a push of the gateway's quota.
        """
        quotas.check(gateway)
        asked = await _object(request)
        quotas.use(gateway, Usage(1, 0, 0))
        parts, last = asked.get("parts", []), asked.get("upload", "")
        if not isinstance(parts, list):
            raise ValidationFailed("parts must be a list of digests", field="parts")
        if not isinstance(last, str):
            raise ValidationFailed("upload must be what the last answer gave", field="upload")
        epoch = asked.get("epoch", "")
        if not isinstance(epoch, str):
            raise ValidationFailed("epoch must be what a page or receipt gave", field="epoch")
        state = service().upload(gateway, asked.get("reference"), parts, last, epoch)
        observe.count("AttachmentsStored", state.stored)
        return answer_json(request, _state(state))

    @router.post(
        "/sync/{gateway}/attachments/download",
        summary="Get an attachment that a row refers to",
        operation_id="downloadAttachment",
        responses=api.answers(
            "SignedRequest", "What reads the file, any range of it.", 404, 410, 413, 502
        ),
        openapi_extra=api.takes("AttachmentPlace"),
    )
    async def download(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Return a signed GET to a caller who sees a row that refers to the file. Safe to repeat.

        `NOT_YET_UPLOADED`: the bytes are still on the device that added the file. The caller checks
        the SHA-256 of the bytes.
        """
        asked = await _object(request)
        table, row_id, column = (_text(asked, name) for name in ("table", "rowId", "column"))
        place = (table, row_id, column)
        signed = service().download(gateway, client.token.all, place, asked.get("reference"))
        return answer_json(request, _signed(signed))

    return router


async def _object(request: Request) -> dict[str, Any]:
    asked = await json_body(request, _WANTED, ATTACHMENT_BODY_BYTES_MAX)
    if not isinstance(asked, dict):
        raise ValidationFailed(_WANTED)
    return asked


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str):
        raise ValidationFailed(f"{name} must be text", field=name)
    return value


def _state(state: UploadState) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "stored": state.stored,
        "requests": [_signed(each) | {"part": each.part} for each in state.requests],
        "partsStored": state.parts_stored,
    }
    return shown | ({"upload": state.upload} if state.upload else {})


def _signed(request: SignedRequest) -> dict[str, Any]:
    return {"url": request.url, "headers": dict(request.headers)}


# --- running --------------------------------------------------------------------------------------


ACTION_BODY_BYTES_MAX: Final = 2_097_152
"""A request for actions: as many as may be sent at once, with parameters of the greatest size."""
ANSWER_MS: Final = 28_000
"""How long a request may take from its beginning: API Gateway waits 30 s for a function."""
_DECODE_ACTIONS: Final = {
    Encoding.JSON: jsonish.decode_action_push,
    Encoding.PROTOBUF: proto.decode_action_push,
}
_ENCODE_ANSWERS: Final = {
    Encoding.JSON: jsonish.encode_answers,
    Encoding.PROTOBUF: proto.encode_answers,
}


def action_routes(service: ActionService) -> Router:
    """Return the routes around the service."""
    router = guarded_router()

    @router.post(
        "/sync/{gateway}/action",
        summary="Have actions done outside",
        operation_id="runActions",
        responses=api.answers(
            "ActionAnswers", "What became of the actions.", 409, 413, protobuf=True
        ),
        openapi_extra=api.takes("ActionPush", protobuf=True),
    )
    async def run(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Run actions one after another, each with its own answer, and each once. Safe to repeat.

        An action that is `retryable` is sent again unchanged, with the same `actionId`; anything
        else is final.
        """
        left_ms = _left_ms(request)
        sent = request_encoding(request.headers.get("content-type"))
        push = _DECODE_ACTIONS[sent](await body_of(request, ACTION_BODY_BYTES_MAX))
        client.speaks_for(push.client_id)
        answers = service.push(gateway, _asker(client), push, left_ms)
        reads = answer_encoding(request.headers.get("accept"), otherwise=sent)
        return answer(request, _ENCODE_ANSWERS[reads](answers), reads)

    @router.get(
        "/sync/{gateway}/actions",
        summary="The actions that the caller may run",
        operation_id="actions",
        responses=api.answers("Actions", "By the names of their handlers."),
    )
    async def actions(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Return the actions that the token may run, with the JSON Schema of their parameters."""
        offered = service.discover(gateway, _asker(client))
        return answer(request, jsonish.encode_discovery(offered), Encoding.JSON)

    return router


def _asker(client: Caller) -> Asker:
    from lakesync.actions.engine import Asker  # noqa: PLC0415

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
Name = Annotated[str, Path("The handler's name.", pattern=NAME_FORM)]


def add_action_routes(router: Router, service: Callable[[], ActionAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        every = service().all(asked.gateway)
        return asked.name, next((each for each in every if each["name"] == asked.name), None)

    @router.post(
        "/admin/actions/{gateway}",
        summary="Register an action handler",
        operation_id="registerActionHandler",
        responses=api.answers("ActionHandlerAdded", "Clients may run it.", 404, 409, 413, 502),
        openapi_extra=api.takes("ActionHandler"),
    )
    @audited(shows)
    async def register(gateway: Gateway, request: Request) -> Response:
        """Register an action handler, and who may run which actions. Secrets are never returned."""
        from lakesync.actions.service import registration_from  # noqa: PLC0415 - when asked

        body = await json_body(request, "an action handler is JSON", HANDLER_BODY_BYTES_MAX)
        wanted = registration_from(body)
        actions = service().register(gateway, wanted)
        return answer_json(request, {"registered": True, "name": wanted.name, "actions": actions})

    @router.get(
        "/admin/actions/{gateway}",
        summary="The action handlers, and who may run what",
        operation_id="actionHandlers",
        responses=api.answers("ActionHandlers", "Without secrets."),
    )
    async def handlers(gateway: Gateway, request: Request) -> Response:
        """Return all action handlers as they were registered, without secrets."""
        return answer_json(request, {"handlers": service().all(gateway)})

    @router.delete(
        "/admin/actions/{gateway}/{name}",
        summary="Remove an action handler; what it ran stays done",
        operation_id="removeActionHandler",
        responses=api.answers("Unregistered", "Nobody runs it any more.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Remove an action handler, with its secrets."""
        service().remove(gateway, name)
        return answer_json(request, {"unregistered": True, "name": name})
