"""Routes for access: administrators list, revoke and restore it, and release clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.instants import utc_text
from lakesync.errors import ValidationFailed
from lakesync.gateway.access import KINDS
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited
from lakesync.runtime.http import Client, Gateway, answer_json, json_body

if TYPE_CHECKING:
    from lakesync.gateway.access import AccessAdmin
    from lakesync.ports import Revocation
    from lakesync.runtime.guard import Asked

ACCESS_BODY_BYTES_MAX: Final = 4_096
"""A change of access names one user or client."""
_SHAPE: Final = (
    'send one of {"revoke": {"user": "…"}}, {"restore": {"client": "…"}}, {"release": '
    '{"client": "…"}}; what is revoked or restored is a user or a client'
)
ClientId = Annotated[
    str | None, Query(alias="client", description="A client id: also say whose it is.")
]


def add_access_routes(router: APIRouter, service: AccessAdmin) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        action, kind, name = _change(asked.body)
        if action == "release":
            return f"{kind} {name}", {"user": service.user_of(asked.gateway, name)}
        revoked = service.revocations(asked.gateway)
        shown = (_shown(each) for each in revoked if (each.kind, each.name) == (kind, name))
        return f"{kind} {name}", next(shown, None)

    @router.get(
        "/admin/access/{gateway}",
        tags=["admin"],
        summary="Revoked users and clients, and the user of a client",
        operation_id="access",
        response_class=Response,
        responses=shapes.answers("Access", "Users and clients that are refused."),
    )
    async def access(gateway: Gateway, request: Request, client: ClientId = None) -> Response:
        """Return all revoked users and clients; and a client's user, if one is named."""
        listed: dict[str, object] = {"revoked": list(map(_shown, service.revocations(gateway)))}
        if client is not None:
            listed |= {"client": client, "user": service.user_of(gateway, client)}
        return answer_json(request, listed)

    @router.post(
        "/admin/access/{gateway}",
        tags=["admin"],
        summary="Revoke or restore a user or a client, or release a client from its user",
        operation_id="changeAccess",
        response_class=Response,
        responses=shapes.answers("Saved", "In force within a minute.", 413),
        openapi_extra=shapes.takes("AccessChange"),
    )
    @audited(shows)
    async def change_access(gateway: Gateway, caller: Client, request: Request) -> Response:
        """Change who may use the gateway. Safe to repeat."""
        body = await json_body(request, _SHAPE, ACCESS_BODY_BYTES_MAX)
        action, kind, name = _change(body)
        if action == "revoke":
            service.revoke(gateway, kind, name, by=caller.token.user)
        elif action == "restore":
            service.restore(gateway, kind, name)
        else:
            service.release(gateway, name)
        return answer_json(request, {"saved": True})


def _change(body: object) -> tuple[str, str, str]:
    if isinstance(body, dict) and len(body) == 1:
        ((action, target),) = body.items()
        kinds = {"revoke": KINDS, "restore": KINDS, "release": ("client",)}.get(action, ())
        if isinstance(target, dict) and len(target) == 1:
            ((kind, name),) = target.items()
            if kind in kinds and isinstance(name, str):
                return action, kind, name
    raise ValidationFailed(_SHAPE)


def _shown(revocation: Revocation) -> dict[str, object]:
    return {
        revocation.kind: revocation.name,
        "at": utc_text(revocation.at_ms),
        "by": revocation.by,
    }
