"""Routes for what rows come from and go to: connectors with their webhooks, destinations, flows.

Administrators declare, inspect, pause, run, fill and remove them. The types of connectors are open
to all callers; a webhook has no token, but its source's signature.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from lakesync.adapters.database_types import database_kinds
from lakesync.core.clock import stamp
from lakesync.core.destinations import destination_to_json
from lakesync.declare.destinations import destination_reader
from lakesync.declare.flows import read_connector
from lakesync.errors import NotFound, ValidationFailed
from lakesync.runtime import api
from lakesync.runtime.api import NAME_FORM, Gateway, Path, Query, Router, audited, tried
from lakesync.runtime.http import Encoding, answer, answer_json, body_of, json_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from lakesync.connectors.connector_admin import ConnectorAdmin
    from lakesync.connectors.incoming_webhooks import Webhooks
    from lakesync.core.destinations import Destination
    from lakesync.flows.flow_admin import FlowAdmin
    from lakesync.gateway.destination_admin import DestinationAdmin, DestinationReport
    from lakesync.runtime.api import Asked

# --- connectors -----------------------------------------------------------------------------------


CONNECTOR_BODY_BYTES_MAX: Final = 64 * 1024
"""A connector's settings fit many times over."""
DO: Final = ("check", "run", "pause", "resume", "reset")
CONNECTOR_ACTIONS: Final = (*DO, "configure")
_SHAPE: Final = (
    f'send {{"do": one of {", ".join(CONNECTOR_ACTIONS)}}}; configure takes "configuration" too'
)
_DECLARED: Final = ("type", "isPolling", "everyMinutes", "configuration")
"""What of a connector is declared; the rest says how far it is."""
ConnectorName = Annotated[str, Path("The connector's name.", pattern=NAME_FORM)]

ConnectorDryRun = Annotated[bool, Query("Ask the source; store nothing.", alias="dryRun")]
WithSchemas = Annotated[
    bool, Query("Of a dry run: answer the tables' schemas, too.", alias="schemas")
]


def add_type_route(router: Router) -> None:
    """Add the open route that lists the types of connectors."""

    @router.get(
        "/connectors/types",
        summary="Types of connectors, and how each is configured",
        operation_id="connectorTypes",
        responses=api.answers("ConnectorTypes", "With JSON Schemas.", common=()),
        openapi_extra={"security": []},
    )
    async def connector_types(request: Request) -> Response:
        """Return all types with the JSON Schema of their settings; secrets are `writeOnly`."""
        from lakesync.connectors.registry import all_described  # noqa: PLC0415 - who asks

        return _listed(request, all_described())


def add_connector_routes(router: Router, service: Callable[[], ConnectorAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        now = service().one(asked.gateway, asked.name)
        return asked.name, {field: now[field] for field in _DECLARED}

    @router.post(
        "/admin/connectors/{gateway}",
        summary="Register a connector, and begin to poll it; or test its settings",
        operation_id="registerConnector",
        responses=api.answers("Registered", "It is polled, or tested.", 404, 409, 413, 502),
        openapi_extra=api.takes("Connector"),
    )
    @audited(shows)
    async def register(
        gateway: Gateway,
        request: Request,
        dry_run: ConnectorDryRun = False,  # noqa: FBT002 - passed by name
        with_schemas: WithSchemas = False,  # noqa: FBT002
    ) -> Response:
        """Register a connector, after its source was queried. Its secrets are never returned."""
        from lakesync.declare.existing_connectors import translated  # noqa: PLC0415 - by few requests

        body = await json_body(request, "a connector is JSON", CONNECTOR_BODY_BYTES_MAX)
        wanted = read_connector(translated(body))
        if dry_run:
            tried(request)
            tested = service().test(gateway, wanted, with_schemas=with_schemas)
            return answer_json(request, {"registered": False} | tested)
        message = service().register(gateway, wanted)
        answered = {"registered": True, "name": wanted.name} | (
            {"message": message} if message else {}
        )
        return answer_json(request, answered)

    @router.get(
        "/admin/connectors/{gateway}",
        summary="The connectors, and how far they are",
        operation_id="connectors",
        responses=api.answers("Connectors", "Without secrets."),
    )
    async def connectors(gateway: Gateway, request: Request) -> Response:
        """Return all connectors: state, lag, rows, the last error."""
        return _listed(request, service().all(gateway))

    @router.get(
        "/admin/connectors/{gateway}/{name}",
        summary="One connector, with its settings and dead letters",
        operation_id="connector",
        responses=api.answers("ConnectorState", "Without secrets.", 404),
    )
    async def connector(gateway: Gateway, name: ConnectorName, request: Request) -> Response:
        """Return one connector."""
        return answer_json(request, service().one(gateway, name))

    @router.post(
        "/admin/connectors/{gateway}/{name}",
        summary="Check, run, pause, resume, reset or configure a connector",
        operation_id="changeConnector",
        responses=api.answers("Done", "It is done.", 404, 409, 413, 502),
        openapi_extra=api.takes("ConnectorAction"),
    )
    @audited(shows)
    async def change(gateway: Gateway, name: ConnectorName, request: Request) -> Response:
        """Do something with a connector. Safe to repeat."""
        body = await json_body(request, _SHAPE, CONNECTOR_BODY_BYTES_MAX)
        message = _do(service(), gateway, name, body)
        return answer_json(request, {"done": True} | ({"message": message} if message else {}))

    @router.delete(
        "/admin/connectors/{gateway}/{name}",
        summary="Remove a connector; delivered rows stay",
        operation_id="removeConnector",
        responses=api.answers("Unregistered", "It is polled no more.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: ConnectorName, request: Request) -> Response:
        """Remove a connector, with its secrets and how far it was."""
        remains = service().remove(gateway, name)
        answer = {"unregistered": True, "name": name}
        return answer_json(request, answer | ({"message": remains} if remains else {}))


def _do(service: ConnectorAdmin, gateway: str, name: str, body: object) -> str | None:
    action = body.get("do") if isinstance(body, dict) else None
    settings = body.get("configuration") if isinstance(body, dict) else None
    if (
        not isinstance(body, dict)
        or action not in CONNECTOR_ACTIONS
        or body.keys() - {"do", "configuration"}
    ):
        raise ValidationFailed(_SHAPE, field="do")
    if (action == "configure") != isinstance(settings, dict):
        raise ValidationFailed(_SHAPE, field="configuration")
    if action == "configure" and isinstance(settings, dict):
        return service.configure(gateway, name, settings)
    if action == "check":
        return service.check(gateway, name)
    if action in {"pause", "resume"}:
        service.set_paused(gateway, name, paused=action == "pause")
    elif action == "run":
        service.run(gateway, name)
    else:
        service.reset(gateway, name)
    return None


def _listed(request: Request, values: list[dict[str, Any]]) -> Response:
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return answer(request, text.encode(), Encoding.JSON)


# --- webhooks -------------------------------------------------------------------------------------


def webhook_routes(service: Webhooks) -> Router:
    """Return the route around the service."""
    from lakesync.connectors.incoming_webhooks import WEBHOOK_BODY_BYTES_MAX  # noqa: PLC0415

    router = Router()

    @router.post(
        "/connectors/{gateway}/{name}/webhook",
        summary="Take a signed webhook of a connector's source",
        operation_id="takeWebhook",
        responses=api.answers(
            "WebhookTaken", "Its changes are durable.", 409, 413, 502,
            common=(400, 401, 429, 503),
        ),
        openapi_extra=api.takes("Webhook") | {"security": []},
    )  # fmt: skip
    async def take(gateway: Gateway, name: ConnectorName, request: Request) -> Response:
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


# --- destinations ---------------------------------------------------------------------------------


DESTINATION_BODY_BYTES_MAX: Final = 256 * 1024
"""A declaration: all buckets that there may be fit."""
DESTINATION_ACTIONS: Final = ("pause", "resume", "backfill", "replay")
DestinationName = Annotated[str, Path("The destination's name.", max_length=64)]
DestinationAction = Annotated[str, Path(f"One of {', '.join(DESTINATION_ACTIONS)}.", max_length=64)]
DestinationDryRun = Annotated[
    bool, Query("Save nothing; only check the declaration.", alias="dryRun")
]
CheckDatabase = Annotated[
    bool, Query("Ask the database first; false declares one that does not answer yet.")
]


def add_destination_routes(router: Router, service: DestinationAdmin) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        declared = service.declared(asked.gateway, asked.name)
        return asked.target, None if declared is None else _shown(declared)

    @router.get(
        "/admin/destinations/{gateway}",
        summary="The destinations, and the status of each",
        operation_id="destinations",
        responses=api.answers("Destinations", "All that are declared.", 502),
    )
    async def destinations(gateway: Gateway, request: Request) -> Response:
        """Return each declaration, its state, its lag, and what its database refused."""
        reports = [_report_to_json(report) for report in service.reports(gateway)]
        without = service.without_lake(gateway)
        named = {"withoutLake": without} if without else {}
        return answer_json(request, {"destinations": reports, **named})

    @router.post(
        "/admin/destinations/{gateway}/{name}",
        summary="Declare a destination, or check a declaration",
        operation_id="declareDestination",
        responses=api.answers("Destination", "Declared, and being filled.", 409, 413, 502),
        openapi_extra=api.takes("DestinationDeclared"),
    )
    @audited(shows)
    async def declare(
        gateway: Gateway,
        name: DestinationName,
        request: Request,
        dry_run: DestinationDryRun = False,  # noqa: FBT002 - passed by name
        check: CheckDatabase = True,  # noqa: FBT002
    ) -> Response:
        """Apply batches there too, from now on; all faults are reported at once. Safe to repeat."""
        body = await json_body(request, "a destination is JSON", DESTINATION_BODY_BYTES_MAX)
        reads = destination_reader(name, body, database_kinds)
        if dry_run:
            tried(request)
            return answer_json(request, _shown(service.check(gateway, reads, asks=check)))
        return answer_json(request, _shown(service.declare(gateway, name, reads, asks=check)))

    @router.delete(
        "/admin/destinations/{gateway}/{name}",
        summary="Remove a destination; its tables stay",
        operation_id="removeDestination",
        responses=api.answers("DestinationRemoved", "Its tables stay as they are.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: DestinationName, request: Request) -> Response:
        """Forget the destination and what waits for it.

        Tables that it had in the lake's place stay without a lake: `withoutLake`.
        """
        service.remove(gateway, name)
        without = service.without_lake(gateway)
        named = {"withoutLake": without} if without else {}
        return answer_json(request, {"removed": name, **named})

    @router.post(
        "/admin/destinations/{gateway}/{name}/{action}",
        summary="Pause or resume a destination, fill it again, retry refused rows",
        operation_id="changeDestination",
        responses=api.answers("DestinationChanged", "In force, or asked for.", 404, 502),
    )
    @audited(shows)
    async def change(
        gateway: Gateway, name: DestinationName, action: DestinationAction, request: Request
    ) -> Response:
        """Do one of these. Safe to repeat."""
        changed: dict[str, Any] = {"name": name, "action": action}
        if action in {"pause", "resume"}:
            service.set_paused(gateway, name, paused=action == "pause")
        elif action == "backfill":
            service.backfill(gateway, name)
        elif action == "replay":
            changed["tables"] = service.retry(gateway, name)
        else:
            raise NotFound(
                f"a destination knows {', '.join(DESTINATION_ACTIONS)}, and no {action[:40]!r}"
            )
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


# --- flows ----------------------------------------------------------------------------------------


FLOW_BODY_BYTES_MAX: Final = 256 * 1024
"""A declaration: all buckets that there may be fit."""
FLOW_ACTIONS: Final = ("pause", "resume", "run", "backfill")
_FROM: Final = 'send {"from": "2026-11-25T00:00:00Z"}, or {} to deliver everything again'
FlowName = Annotated[str, Path("The flow's name.", max_length=64)]
FlowAction = Annotated[str, Path(f"One of {', '.join(FLOW_ACTIONS)}.", max_length=64)]
FlowDryRun = Annotated[bool, Query("Save nothing; return what would move.", alias="dryRun")]
CheckEnds = Annotated[
    bool, Query("Ask both ends first; false declares a flow whose ends do not answer.")
]


def add_flow_routes(router: Router, service: Callable[[], FlowAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        return asked.target, service().declared(asked.gateway, asked.name)

    @router.get(
        "/admin/flows/{gateway}",
        summary="The flows, and the status of each",
        operation_id="flows",
        responses=api.answers("Flows", "Destinations are flows from the gateway.", 502),
    )
    async def flows(gateway: Gateway, request: Request) -> Response:
        """Return each flow as it is declared, its state, its lag, what was refused."""
        return answer_json(request, {"flows": service().all(gateway)})

    @router.post(
        "/admin/flows/{gateway}",
        summary="Declare a flow, or plan one",
        operation_id="declareFlow",
        responses=api.answers("FlowAnswered", "Declared, or planned.", 404, 409, 413, 502),
        openapi_extra=api.takes("FlowDeclared"),
    )
    @audited(shows)
    async def declare(
        gateway: Gateway,
        request: Request,
        dry_run: FlowDryRun = False,  # noqa: FBT002 - passed by name
        check: CheckEnds = True,  # noqa: FBT002
    ) -> Response:
        """Let rows move from now on; every fault is named at once. Safe to repeat."""
        body = await json_body(request, "a flow is JSON", FLOW_BODY_BYTES_MAX)
        if dry_run:
            tried(request)
            return answer_json(request, service().plan(gateway, body, asks=check))
        return answer_json(request, service().declare(gateway, body, asks=check))

    @router.delete(
        "/admin/flows/{gateway}/{name}",
        summary="Remove a flow; delivered rows stay",
        operation_id="removeFlow",
        responses=api.answers("FlowRemoved", "Nothing moves any more.", 404, 409, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: FlowName, request: Request) -> Response:
        """Forget the flow, its secrets and how far it was."""
        remains = service().remove(gateway, name)
        return answer_json(request, {"removed": name} | ({"message": remains} if remains else {}))

    @router.post(
        "/admin/flows/{gateway}/{name}/{action}",
        summary="Pause, resume or run a flow, or deliver everything again",
        operation_id="changeFlow",
        responses=api.answers("FlowChanged", "In force, or asked for.", 404, 409, 413, 502),
        openapi_extra=api.takes("FlowAction"),
    )
    @audited(shows)
    async def change(
        gateway: Gateway, name: FlowName, action: FlowAction, request: Request
    ) -> Response:
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
            raise NotFound(f"a flow knows {', '.join(FLOW_ACTIONS)}, and no {action[:40]!r}")
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
