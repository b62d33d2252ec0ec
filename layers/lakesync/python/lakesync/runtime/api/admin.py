"""Routes for administration: schemas, rules, access, flushes, and a gateway's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response

from lakesync.errors import NotFound
from lakesync.runtime.api import schemas
from lakesync.runtime.api.access import add_access_routes
from lakesync.runtime.api.action_admin import add_action_routes
from lakesync.runtime.api.audit import add_audit_route
from lakesync.runtime.api.clients import add_client_routes
from lakesync.runtime.api.connectors import add_connector_routes
from lakesync.runtime.api.deletion import add_deletion_route
from lakesync.runtime.api.destinations import add_destination_routes
from lakesync.runtime.api.flows import add_flow_routes
from lakesync.runtime.api.registry import add_schema_routes
from lakesync.runtime.api.rules import add_rules_routes
from lakesync.runtime.api.tables import add_table_routes
from lakesync.runtime.guard import audited, guarded_router
from lakesync.runtime.http import Client, Gateway, answer_json
from lakesync.runtime.parameters import TABLE_FORM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.admin import ActionAdmin
    from lakesync.connectors.admin import ConnectorAdmin
    from lakesync.flows.admin import FlowAdmin
    from lakesync.gateway.access import AccessAdmin
    from lakesync.gateway.admin import AdminService
    from lakesync.gateway.audit import Audit
    from lakesync.gateway.clients import ClientsAdmin
    from lakesync.gateway.destinations import DestinationAdmin
    from lakesync.runtime.api.deletion import DeleteNow

    FlushNow = Callable[[str, str], Mapping[str, object]]

FlushedTable = Annotated[
    str, Query(alias="table", pattern=TABLE_FORM, description="Flush only this table.")
]


def admin_routes(
    service: AdminService,
    access: AccessAdmin,
    destinations: DestinationAdmin,
    flush_now: FlushNow,
    delete_now: DeleteNow,
    connectors: Callable[[], ConnectorAdmin],
    actions: Callable[[], ActionAdmin],
    audit: Audit,
    clients: Callable[[], ClientsAdmin],
    flows: Callable[[], FlowAdmin],
) -> APIRouter:
    """Return the routes around the services.

    Args:
        service: changes and shows a gateway's configuration.
        access: changes and shows who may use the gateway.
        destinations: changes and shows where batches are applied besides the lake.
        flush_now: flushes one gateway, or a table of it, and reports what was done, or raises
            `LakeSyncError`.
        delete_now: deletes one gateway for a user, and reports its progress.
        connectors: gives the registry of connectors, created when it is first needed.
        actions: gives the registry of action handlers, created when it is first needed.
        audit: gives the records of changes, and by whom.
        clients: gives what shows clients and disconnects them, created when it is first needed.
        flows: gives what declares flows, created when it is first needed.
    """
    router = guarded_router()
    add_schema_routes(router, service)
    add_rules_routes(router, service)
    add_table_routes(router, service)
    add_access_routes(router, access)
    add_connector_routes(router, connectors)
    add_action_routes(router, actions)
    add_destination_routes(router, destinations)
    add_flow_routes(router, flows)
    add_deletion_route(router, access, delete_now)
    add_audit_route(router, audit)
    add_client_routes(router, clients)

    @router.post(
        "/admin/flush/{gateway}",
        tags=["admin"],
        summary="Flush now, everything or one table",
        operation_id="flush",
        response_class=Response,
        responses=schemas.answers("Flushed", "All that was asked for is announced.", 404, 502),
    )
    @audited(lambda asked: ("", service.metrics(asked.gateway).get("flushedHlc")))
    async def flush(gateway: Gateway, request: Request, table: FlushedTable = "") -> Response:
        """Write what waits in the buffer to the lake's store and announce it. Safe to repeat.

        With `table`, the others wait for the next flush, unless a range of theirs is unfinished
        that lies before what waits of this table.
        """
        if table and not service.knows_table(gateway, table):
            raise NotFound(f"the gateway has no table {table}", field="table")
        named = {"table": table} if table else {}
        return answer_json(request, {"flushed": True, **named, **flush_now(gateway, table)})

    documented = schemas.answers("Metrics", "The buffer, in numbers.")

    @router.get(
        "/admin/metrics/{gateway}",
        tags=["admin"],
        summary="Buffer statistics",
        operation_id="adminMetrics",
        response_class=Response,
        responses=documented,
    )
    async def admin_metrics(gateway: Gateway, request: Request) -> Response:
        """Return how much waits to be flushed, for how long, and how far the log is."""
        return answer_json(request, service.metrics(gateway))

    @router.get(
        "/sync/{gateway}/metrics",
        tags=["sync"],
        summary="Buffer statistics of what the caller may see",
        operation_id="metrics",
        response_class=Response,
        responses=documented,
    )
    async def sync_metrics(gateway: Gateway, client: Client, request: Request) -> Response:
        """Get the same; only the tables and `headHlc` where rules keep anything from the caller."""
        claims = None if client.is_administrator else client.token.all
        return answer_json(request, service.metrics(gateway, claims))

    return router
