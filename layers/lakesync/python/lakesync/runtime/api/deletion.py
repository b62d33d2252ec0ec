"""The route by which an administrator deletes a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from lakesync.ports import GATEWAY_KIND
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited
from lakesync.runtime.http import EvenOfDeleted, Gateway, answer_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.gateway.access import AccessAdmin
    from lakesync.runtime.guard import Asked

    DeleteNow = Callable[[str, str], Mapping[str, object]]


def add_deletion_route(router: APIRouter, access: AccessAdmin, delete_now: DeleteNow) -> None:
    """Add the route around a function that deletes a gateway for a user and reports progress."""

    def shows(asked: Asked) -> tuple[str, object]:
        revoked = access.revocations(asked.gateway)
        return "", {"deleted": any(each.kind == GATEWAY_KIND for each in revoked)}

    @router.delete(
        "/admin/gateways/{gateway}",
        tags=["admin"],
        summary="Delete the gateway, for good",
        operation_id="deleteGateway",
        response_class=Response,
        responses=shapes.answers("Deletion", "How far that is; ask again if not gone.", 404, 502),
    )
    @audited(shows)
    async def delete_gateway(gateway: Gateway, caller: EvenOfDeleted, request: Request) -> Response:
        """Remove everything that is stored of the gateway, and count what is left. Safe to repeat.

        From the first answer on nothing is accepted. Its id is never used again.
        """
        return answer_json(request, delete_now(gateway, caller.token.user))
