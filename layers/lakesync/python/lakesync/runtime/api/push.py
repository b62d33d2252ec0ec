"""``POST /sync/{gateway}/push``: a client hands its deltas over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Request, Response

from lakesync.ports import Usage
from lakesync.runtime import observe
from lakesync.runtime.api import shapes
from lakesync.runtime.bodies import Encoding, answer_encoding, request_encoding
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import Client, Gateway, answer, body_of
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from lakesync.compat.pushes import FollowingPushes
    from lakesync.gateway.push import PushService
    from lakesync.gateway.quota import Quotas

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
        responses=shapes.answers(
            "PushReceipt", "What became of the deltas.", 409, 413, protobuf=True
        ),
        openapi_extra=shapes.takes("Push", protobuf=True),
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
