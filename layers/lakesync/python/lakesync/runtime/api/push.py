"""Routes by which a client hands over its edits and files: pushes and attachments.

``POST /sync/{gateway}/push``; ``POST /sync/{gateway}/attachments`` and ``…/attachments/download``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request, Response

from lakesync.errors import ValidationFailed
from lakesync.ports import Usage
from lakesync.runtime import observe
from lakesync.runtime.api import openapi
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import (
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

    from lakesync.compat.follower_pushes import FollowingPushes
    from lakesync.gateway.attachments import AttachmentService
    from lakesync.gateway.push import PushService
    from lakesync.gateway.quota import Quotas
    from lakesync.ports import SignedRequest, UploadState

# --- pushes ---------------------------------------------------------------------------------------


_DECODE: Final = {Encoding.JSON: jsonish.decode_push, Encoding.PROTOBUF: proto.decode_push}
_ENCODE: Final = {Encoding.JSON: jsonish.encode_receipt, Encoding.PROTOBUF: proto.encode_receipt}


def push_routes(
    service: PushService | FollowingPushes, quotas: Quotas, *, body_bytes_max: int
) -> APIRouter:
    """Return the route around the service, which is called within the gateway's quota."""
    router = guarded_router(tags=["sync"])

    @router.post(
        "/sync/{gateway}/push",
        summary="Hand deltas over",
        operation_id="push",
        response_class=Response,
        responses=openapi.answers(
            "PushReceipt", "What became of the deltas.", 409, 413, protobuf=True
        ),
        openapi_extra=openapi.takes("Push", protobuf=True),
    )
    async def push(gateway: Gateway, client: Client, request: Request) -> Response:
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


def attachment_routes(service: Callable[[], AttachmentService], quotas: Quotas) -> APIRouter:
    """Return the routes around a factory of the service, called within the gateway's quota."""
    router = guarded_router(tags=["sync"])

    @router.post(
        "/sync/{gateway}/attachments",
        summary="Upload an attachment, or continue an upload",
        operation_id="uploadAttachment",
        response_class=Response,
        responses=openapi.answers(
            "AttachmentUploadState", "How far it is, and what to send next.", 409, 410, 413, 502
        ),
        openapi_extra=openapi.takes("AttachmentUpload"),
    )
    async def upload(gateway: Gateway, client: Client, request: Request) -> Response:  # noqa: ARG001 - the guard reads it
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
        response_class=Response,
        responses=openapi.answers(
            "SignedRequest", "What reads the file, any range of it.", 404, 410, 413, 502
        ),
        openapi_extra=openapi.takes("AttachmentPlace"),
    )
    async def download(gateway: Gateway, client: Client, request: Request) -> Response:
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
