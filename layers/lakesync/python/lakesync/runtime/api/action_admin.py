"""Routes for action handlers, for administrators: register, look, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Path, Request, Response

from lakesync.runtime.api import schemas
from lakesync.runtime.http import Gateway, admin_of_gateway, answer_json, json_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.actions.admin import ActionAdmin

HANDLER_BODY_BYTES_MAX: Final = 512 * 1024
"""An action handler with all the actions and permissions that it may have."""
_ADMIN: Final = [Depends(admin_of_gateway)]
Name = Annotated[str, Path(description="The handler's name.", pattern="^[A-Za-z0-9_-]{1,64}$")]


def add_action_routes(router: APIRouter, service: Callable[[], ActionAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    @router.post(
        "/admin/actions/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Register an action handler",
        operation_id="registerActionHandler",
        response_class=Response,
        responses=schemas.answers("ActionHandlerAdded", "Clients may run it.", 404, 409, 413, 502),
        openapi_extra=schemas.takes("ActionHandler"),
    )
    async def register(gateway: Gateway, request: Request) -> Response:
        """Register an action handler, and who may run what. Its secrets are never returned."""
        from lakesync.actions.definition import registration_from  # noqa: PLC0415 - when asked

        body = await json_body(request, "an action handler is JSON", HANDLER_BODY_BYTES_MAX)
        wanted = registration_from(body)
        actions = service().register(gateway, wanted)
        return answer_json(request, {"registered": True, "name": wanted.name, "actions": actions})

    @router.get(
        "/admin/actions/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="The action handlers, and who may run what",
        operation_id="actionHandlers",
        response_class=Response,
        responses=schemas.answers("ActionHandlers", "Without secrets."),
    )
    async def handlers(gateway: Gateway, request: Request) -> Response:
        """Give all action handlers as they were registered, without secrets."""
        return answer_json(request, {"handlers": service().all(gateway)})

    @router.delete(
        "/admin/actions/{gateway}/{name}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Remove an action handler; what it ran stays done",
        operation_id="removeActionHandler",
        response_class=Response,
        responses=schemas.answers("Unregistered", "Nobody runs it any more.", 404, 502),
    )
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Remove an action handler, with its secrets."""
        service().remove(gateway, name)
        return answer_json(request, {"unregistered": True, "name": name})
