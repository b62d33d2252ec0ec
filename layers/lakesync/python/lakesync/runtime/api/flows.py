"""Routes for flows: administrators plan, declare, inspect, pause, run, refill and remove them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from lakesync.core.clock import stamp
from lakesync.errors import NotFound, ValidationFailed
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited, tried
from lakesync.runtime.http import Gateway, answer_json, json_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.flows.admin import FlowAdmin
    from lakesync.runtime.guard import Asked

FLOW_BODY_BYTES_MAX: Final = 256 * 1024
"""A declaration: all buckets that there may be fit."""
ACTIONS: Final = ("pause", "resume", "run", "backfill")
_FROM: Final = 'send {"from": "2026-11-25T00:00:00Z"}, or {} to deliver everything again'
Name = Annotated[str, Path(description="The flow's name.", max_length=64)]
Action = Annotated[str, Path(description=f"One of {', '.join(ACTIONS)}.", max_length=64)]
DryRun = Annotated[bool, Query(alias="dryRun", description="Save nothing; return what would move.")]
Check = Annotated[
    bool, Query(description="Ask both ends first; false declares a flow whose ends do not answer.")
]


def add_flow_routes(router: APIRouter, service: Callable[[], FlowAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        return asked.target, service().declared(asked.gateway, asked.name)

    @router.get(
        "/admin/flows/{gateway}",
        tags=["admin"],
        summary="The flows, and the status of each",
        operation_id="flows",
        response_class=Response,
        responses=shapes.answers("Flows", "Destinations are flows from the gateway.", 502),
    )
    async def flows(gateway: Gateway, request: Request) -> Response:
        """Return each flow as it is declared, its state, its lag, what was refused."""
        return answer_json(request, {"flows": service().all(gateway)})

    @router.post(
        "/admin/flows/{gateway}",
        tags=["admin"],
        summary="Declare a flow, or plan one",
        operation_id="declareFlow",
        response_class=Response,
        responses=shapes.answers("FlowAnswered", "Declared, or planned.", 404, 409, 413, 502),
        openapi_extra=shapes.takes("FlowDeclared"),
    )
    @audited(shows)
    async def declare(
        gateway: Gateway,
        request: Request,
        dry_run: DryRun = False,  # noqa: FBT002 - FastAPI passes it by name
        check: Check = True,  # noqa: FBT002
    ) -> Response:
        """Let rows move from now on; every fault is named at once. Safe to repeat."""
        body = await json_body(request, "a flow is JSON", FLOW_BODY_BYTES_MAX)
        if dry_run:
            tried(request)
            return answer_json(request, service().plan(gateway, body, asks=check))
        return answer_json(request, service().declare(gateway, body, asks=check))

    @router.delete(
        "/admin/flows/{gateway}/{name}",
        tags=["admin"],
        summary="Remove a flow; delivered rows stay",
        operation_id="removeFlow",
        response_class=Response,
        responses=shapes.answers("FlowRemoved", "Nothing moves any more.", 404, 409, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Forget the flow, its secrets and how far it was."""
        remains = service().remove(gateway, name)
        return answer_json(request, {"removed": name} | ({"message": remains} if remains else {}))

    @router.post(
        "/admin/flows/{gateway}/{name}/{action}",
        tags=["admin"],
        summary="Pause, resume or run a flow, or deliver everything again",
        operation_id="changeFlow",
        response_class=Response,
        responses=shapes.answers("FlowChanged", "In force, or asked for.", 404, 409, 413, 502),
        openapi_extra=shapes.takes("FlowAction"),
    )
    @audited(shows)
    async def change(gateway: Gateway, name: Name, action: Action, request: Request) -> Response:
        """Do one of these; ``from`` is for a backfill alone. Safe to repeat."""
        body = await json_body(request, _FROM, FLOW_BODY_BYTES_MAX)
        since = _since(body, action)
        if action in {"pause", "resume"}:
            service().set_paused(gateway, name, paused=action == "pause")
        elif action == "run":
            service().run(gateway, name)
        elif action == "backfill":
            service().backfill(gateway, name, since)
        else:
            raise NotFound(f"a flow knows {', '.join(ACTIONS)}, and no {action[:40]!r}")
        return answer_json(request, {"name": name, "action": action})


def _since(body: Any, action: str) -> int:
    """Return the stamp after which a backfill begins; 0 if it begins at the beginning."""
    if not isinstance(body, dict) or body.keys() - {"from"} or (body and action != "backfill"):
        raise ValidationFailed(_FROM, field="from")
    if "from" not in body:
        return 0
    try:
        at = datetime.fromisoformat(body["from"])
        milliseconds = int(at.timestamp() * 1_000) if at.tzinfo else 0
    except (TypeError, ValueError, OverflowError) as exc:
        raise ValidationFailed(_FROM, field="from") from exc
    if milliseconds <= 0:
        raise ValidationFailed(_FROM, field="from")
    return stamp(milliseconds)
