"""Routes for destinations: administrators declare, inspect, pause, fill and remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from lakesync.core.destinations import destination_to_json
from lakesync.errors import NotFound
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited, tried
from lakesync.runtime.http import Gateway, answer_json, json_body

if TYPE_CHECKING:
    from lakesync.core.destinations import Destination
    from lakesync.gateway.destinations import DestinationAdmin, DestinationReport
    from lakesync.runtime.guard import Asked

DESTINATION_BODY_BYTES_MAX: Final = 256 * 1024
"""A declaration: all buckets that there may be fit."""
ACTIONS: Final = ("pause", "resume", "backfill", "replay")
Name = Annotated[str, Path(description="The destination's name.", max_length=64)]
Action = Annotated[str, Path(description=f"One of {', '.join(ACTIONS)}.", max_length=64)]
DryRun = Annotated[
    bool, Query(alias="dryRun", description="Save nothing; only check the declaration.")
]
Check = Annotated[
    bool, Query(description="Ask the database first; false declares one that does not answer yet.")
]


def add_destination_routes(router: APIRouter, service: DestinationAdmin) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        declared = service.declared(asked.gateway, asked.name)
        return asked.target, None if declared is None else _shown(declared)

    @router.get(
        "/admin/destinations/{gateway}",
        tags=["admin"],
        summary="The destinations, and the status of each",
        operation_id="destinations",
        response_class=Response,
        responses=shapes.answers("Destinations", "All that are declared.", 502),
    )
    async def destinations(gateway: Gateway, request: Request) -> Response:
        """Return each declaration, its state, its lag, and what its database refused."""
        reports = [_report_to_json(report) for report in service.reports(gateway)]
        without = service.without_lake(gateway)
        named = {"withoutLake": without} if without else {}
        return answer_json(request, {"destinations": reports, **named})

    @router.post(
        "/admin/destinations/{gateway}/{name}",
        tags=["admin"],
        summary="Declare a destination, or check a declaration",
        operation_id="declareDestination",
        response_class=Response,
        responses=shapes.answers("Destination", "Declared, and being filled.", 409, 413, 502),
        openapi_extra=shapes.takes("DestinationDeclared"),
    )
    @audited(shows)
    async def declare(
        gateway: Gateway,
        name: Name,
        request: Request,
        dry_run: DryRun = False,  # noqa: FBT002 - FastAPI passes it by name
        check: Check = True,  # noqa: FBT002
    ) -> Response:
        """Apply batches there too, from now on; all faults are reported at once. Safe to repeat."""
        body = await json_body(request, "a destination is JSON", DESTINATION_BODY_BYTES_MAX)
        if dry_run:
            tried(request)
            return answer_json(request, _shown(service.check(gateway, name, body, asks=check)))
        return answer_json(request, _shown(service.declare(gateway, name, body, asks=check)))

    @router.delete(
        "/admin/destinations/{gateway}/{name}",
        tags=["admin"],
        summary="Remove a destination; its tables stay",
        operation_id="removeDestination",
        response_class=Response,
        responses=shapes.answers("DestinationRemoved", "Its tables stay as they are.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Forget the destination and what waits for it.

        Tables that it had in the lake's place stay without a lake: `withoutLake`.
        """
        service.remove(gateway, name)
        without = service.without_lake(gateway)
        named = {"withoutLake": without} if without else {}
        return answer_json(request, {"removed": name, **named})

    @router.post(
        "/admin/destinations/{gateway}/{name}/{action}",
        tags=["admin"],
        summary="Pause or resume a destination, fill it again, retry refused rows",
        operation_id="changeDestination",
        response_class=Response,
        responses=shapes.answers("DestinationChanged", "In force, or asked for.", 404, 502),
    )
    @audited(shows)
    async def change(gateway: Gateway, name: Name, action: Action, request: Request) -> Response:
        """Do one of these. Safe to repeat."""
        changed: dict[str, Any] = {"name": name, "action": action}
        if action in {"pause", "resume"}:
            service.set_paused(gateway, name, paused=action == "pause")
        elif action == "backfill":
            service.backfill(gateway, name)
        elif action == "replay":
            changed["tables"] = service.retry(gateway, name)
        else:
            raise NotFound(f"a destination knows {', '.join(ACTIONS)}, and no {action[:40]!r}")
        return answer_json(request, changed)


def _shown(destination: Destination) -> dict[str, Any]:
    """Return a declaration: of the secret its name alone, as it was declared."""
    return destination_to_json(destination)


def _report_to_json(report: DestinationReport) -> dict[str, Any]:
    return {
        **_shown(report.destination),
        "state": report.state,
        "lagMs": report.lag_ms,
        "waiting": report.waiting,
        "filling": report.filling,
        "deadLetters": sum(state.dead_letters for state in report.tables.values()),
        "setAside": [
            {"claim": claim, "reason": reason} for claim, reason in report.set_aside.items()
        ],
        "tablesDelivered": [
            {
                "table": table,
                "mark": str(state.mark),
                "deadLetters": state.dead_letters,
                "error": state.error,
                "atMs": state.at_ms,
                **({"archived": str(state.archived)} if report.destination.archive else {}),
            }
            for table, state in sorted(report.tables.items())
        ],
    }
