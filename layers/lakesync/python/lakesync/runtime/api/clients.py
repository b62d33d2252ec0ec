"""Routes for a gateway's clients: which are connected or behind; administrators disconnect them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.instants import utc_text
from lakesync.errors import ValidationFailed
from lakesync.runtime.api import shapes
from lakesync.runtime.api.page_cursor import cursor_of, place_of
from lakesync.runtime.guard import audited
from lakesync.runtime.http import Gateway, answer_json, json_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.clients import ClientReport, ClientsAdmin
    from lakesync.runtime.guard import Asked

CLIENTS_DEFAULT: Final = 50
CLIENTS_MAX: Final = 200
"""Clients of one page: what is remembered of each is read by itself."""
CLIENTS_BODY_BYTES_MAX: Final = 4_096
"""A request to disconnect names one client."""
_SHAPE: Final = 'send {"disconnect": {"client": "…"}}'
_PLACE: Final = re.compile(r"[0-9a-f].*", re.DOTALL)
Cursor = Annotated[str, Query(max_length=600, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=CLIENTS_MAX, description="Clients wanted.")]


def add_client_routes(router: APIRouter, service: Callable[[], ClientsAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        name = _client(asked.body)
        return f"client {name}", {"connections": len(service().connected(asked.gateway, name))}

    @router.get(
        "/admin/clients/{gateway}",
        tags=["admin"],
        summary="The clients: whose each is, whether it is connected, and how far behind",
        operation_id="clients",
        response_class=Response,
        responses=shapes.answers("Clients", "Some of them; ask again with `next`."),
    )
    async def clients(
        gateway: Gateway, request: Request, cursor: Cursor = "", limit: Limit = CLIENTS_DEFAULT
    ) -> Response:
        """Return clients that ever came, in no order of interest.

        A client's position is noted as it pulls, at most every quarter of an hour, and not while it
        has read everything: `behindMs` is never too small, and for a client that keeps reading it
        is too large by at most that much.
        """
        reports, place = service().clients(gateway, place_of(cursor, _PLACE), limit)
        page: dict[str, object] = {"clients": list(map(_shown, reports))}
        following = {"next": cursor_of(place)} if place else {}
        return answer_json(request, page | following)

    @router.post(
        "/admin/clients/{gateway}",
        tags=["admin"],
        summary="Close a client's connections",
        operation_id="disconnectClient",
        response_class=Response,
        responses=shapes.answers("Disconnected", "It may connect again.", 413, 502),
        openapi_extra=shapes.takes("Disconnect"),
    )
    @audited(shows)
    async def disconnect(gateway: Gateway, request: Request) -> Response:
        """Close a client's connections, with a reason. It may connect again. Safe to repeat."""
        body = await json_body(request, _SHAPE, CLIENTS_BODY_BYTES_MAX)
        closed = service().disconnect(gateway, _client(body))
        return answer_json(request, {"disconnected": closed})


def _client(body: object) -> str:
    target = body.get("disconnect") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(target, dict) and len(target) == 1 and isinstance(target.get("client"), str):
        return str(target["client"])
    raise ValidationFailed(_SHAPE)


def _shown(report: ClientReport) -> dict[str, Any]:
    return {
        "client": report.client_id,
        "user": report.user,
        "connections": [
            {
                "openedAt": utc_text(each.opened_ms),
                "expiresAt": utc_text(int(each.expires_s * 1000)),
            }
            for each in report.connections
        ],
        "revoked": report.is_revoked,
        "behindMs": report.behind_ms,
        "quarantined": report.seen.quarantined if report.seen else None,
        "notedAt": utc_text(report.seen.at_ms) if report.seen else None,
    }
