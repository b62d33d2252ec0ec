"""The route of webhooks: ``POST /connectors/{gateway}/{name}/webhook``, without a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from lakesync.errors import ValidationFailed
from lakesync.runtime.api import shapes
from lakesync.runtime.api.connectors import Name  # noqa: TC001 - FastAPI reads it
from lakesync.runtime.http import Gateway, answer_json, body_of

if TYPE_CHECKING:
    from lakesync.connectors.webhooks import Webhooks


def webhook_routes(service: Webhooks) -> APIRouter:
    """Return the route around the service."""
    from lakesync.connectors.webhooks import WEBHOOK_BODY_BYTES_MAX  # noqa: PLC0415

    router = APIRouter(tags=["open"])

    @router.post(
        "/connectors/{gateway}/{name}/webhook",
        summary="Take a signed webhook of a connector's source",
        operation_id="takeWebhook",
        response_class=Response,
        responses=shapes.answers(
            "WebhookTaken", "Its changes are durable.", 409, 413, 502,
            common=(400, 401, 429, 503),
        ),
        openapi_extra=shapes.takes("Webhook") | {"security": []},
    )  # fmt: skip
    async def take(gateway: Gateway, name: Name, request: Request) -> Response:
        """Accept a source's report, if its signature is right. Safe to repeat: it is taken once.

        Which headers sign it is the source's; Jira Cloud's is `X-Hub-Signature`.
        """
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ValidationFailed(
                "send the webhook's body as it was signed, uncompressed", field="body"
            )
        body = await body_of(request, WEBHOOK_BODY_BYTES_MAX)
        taken = service.take(gateway, name, request.headers, body)
        return answer_json(request, {"accepted": taken.rows, "repeated": taken.is_repeated})

    return router
