"""Routes for action handlers, for administrators: register, look, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited
from lakesync.runtime.http import Gateway, answer_json, json_body
from lakesync.runtime.parameters import NAME_FORM

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.actions.admin import ActionAdmin
    from lakesync.runtime.guard import Asked

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
        responses=shapes.answers("ActionHandlerAdded", "Clients may run it.", 404, 409, 413, 502),
        openapi_extra=shapes.takes("ActionHandler"),
    )
    @audited(shows)
    async def register(gateway: Gateway, request: Request) -> Response:
        """Register an action handler, and who may run which actions. Secrets are never returned."""
        from lakesync.actions.definition import registration_from  # noqa: PLC0415 - when asked

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
        responses=shapes.answers("ActionHandlers", "Without secrets."),
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
        responses=shapes.answers("Unregistered", "Nobody runs it any more.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Remove an action handler, with its secrets."""
        service().remove(gateway, name)
        return answer_json(request, {"unregistered": True, "name": name})
