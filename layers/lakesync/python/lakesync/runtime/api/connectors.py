"""Routes for connectors: their types, for all callers; a gateway's own, for administrators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from lakesync.errors import ValidationFailed
from lakesync.runtime.api import shapes
from lakesync.runtime.bodies import Encoding
from lakesync.runtime.guard import audited, tried
from lakesync.runtime.http import Gateway, answer, answer_json, json_body
from lakesync.runtime.parameters import NAME_FORM

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.admin import ConnectorAdmin
    from lakesync.runtime.guard import Asked

CONNECTOR_BODY_BYTES_MAX: Final = 64 * 1024
"""A connector's settings fit many times over."""
DO: Final = ("check", "run", "pause", "resume", "reset")
ACTIONS: Final = (*DO, "configure")
_SHAPE: Final = f'send {{"do": one of {", ".join(ACTIONS)}}}; configure takes "configuration" too'
_DECLARED: Final = ("type", "isPolling", "everyMinutes", "configuration")
"""What of a connector is declared; the rest says how far it is."""
Name = Annotated[str, Path(description="The connector's name.", pattern=NAME_FORM)]

DryRun = Annotated[bool, Query(alias="dryRun", description="Ask the source; store nothing.")]
WithSchemas = Annotated[
    bool, Query(alias="schemas", description="Of a dry run: answer the tables' schemas, too.")
]


def add_type_route(router: APIRouter) -> None:
    """Add the open route that lists the types of connectors."""

    @router.get(
        "/connectors/types",
        summary="Types of connectors, and how each is configured",
        operation_id="connectorTypes",
        response_class=Response,
        responses=shapes.answers("ConnectorTypes", "With JSON Schemas.", common=()),
        openapi_extra={"security": []},
    )
    async def connector_types(request: Request) -> Response:
        """Return all types with the JSON Schema of their settings; secrets are `writeOnly`."""
        from lakesync.connectors.registry import all_described  # noqa: PLC0415 - who asks

        return _listed(request, all_described())


def add_connector_routes(router: APIRouter, service: Callable[[], ConnectorAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        now = service().one(asked.gateway, asked.name)
        return asked.name, {field: now[field] for field in _DECLARED}

    @router.post(
        "/admin/connectors/{gateway}",
        tags=["admin"],
        summary="Register a connector, and begin to poll it; or test its settings",
        operation_id="registerConnector",
        response_class=Response,
        responses=shapes.answers("Registered", "It is polled, or tested.", 404, 409, 413, 502),
        openapi_extra=shapes.takes("Connector"),
    )
    @audited(shows)
    async def register(
        gateway: Gateway,
        request: Request,
        dry_run: DryRun = False,  # noqa: FBT002 - FastAPI passes it by name
        with_schemas: WithSchemas = False,  # noqa: FBT002
    ) -> Response:
        """Register a connector, after its source was queried. Its secrets are never returned."""
        from lakesync.compat.connector_bodies import translated  # noqa: PLC0415 - by few requests
        from lakesync.connectors.definition import registration_from  # noqa: PLC0415

        body = await json_body(request, "a connector is JSON", CONNECTOR_BODY_BYTES_MAX)
        wanted = registration_from(translated(body))
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
        tags=["admin"],
        summary="The connectors, and how far they are",
        operation_id="connectors",
        response_class=Response,
        responses=shapes.answers("Connectors", "Without secrets."),
    )
    async def connectors(gateway: Gateway, request: Request) -> Response:
        """Return all connectors: state, lag, rows, the last error."""
        return _listed(request, service().all(gateway))

    @router.get(
        "/admin/connectors/{gateway}/{name}",
        tags=["admin"],
        summary="One connector, with its settings and dead letters",
        operation_id="connector",
        response_class=Response,
        responses=shapes.answers("ConnectorState", "Without secrets.", 404),
    )
    async def connector(gateway: Gateway, name: Name, request: Request) -> Response:
        """Return one connector."""
        return answer_json(request, service().one(gateway, name))

    @router.post(
        "/admin/connectors/{gateway}/{name}",
        tags=["admin"],
        summary="Check, run, pause, resume, reset or configure a connector",
        operation_id="changeConnector",
        response_class=Response,
        responses=shapes.answers("Done", "It is done.", 404, 409, 413, 502),
        openapi_extra=shapes.takes("ConnectorAction"),
    )
    @audited(shows)
    async def change(gateway: Gateway, name: Name, request: Request) -> Response:
        """Do something with a connector. Safe to repeat."""
        body = await json_body(request, _SHAPE, CONNECTOR_BODY_BYTES_MAX)
        message = _do(service(), gateway, name, body)
        return answer_json(request, {"done": True} | ({"message": message} if message else {}))

    @router.delete(
        "/admin/connectors/{gateway}/{name}",
        tags=["admin"],
        summary="Remove a connector; delivered rows stay",
        operation_id="removeConnector",
        response_class=Response,
        responses=shapes.answers("Unregistered", "It is polled no more.", 404, 502),
    )
    @audited(shows)
    async def remove(gateway: Gateway, name: Name, request: Request) -> Response:
        """Remove a connector, with its secrets and how far it was."""
        remains = service().remove(gateway, name)
        answer = {"unregistered": True, "name": name}
        return answer_json(request, answer | ({"message": remains} if remains else {}))


def _do(service: ConnectorAdmin, gateway: str, name: str, body: object) -> str | None:
    action = body.get("do") if isinstance(body, dict) else None
    settings = body.get("configuration") if isinstance(body, dict) else None
    if not isinstance(body, dict) or action not in ACTIONS or body.keys() - {"do", "configuration"}:
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
