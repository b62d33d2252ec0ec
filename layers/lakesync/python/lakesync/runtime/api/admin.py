"""Routes for administration: schemas, rules, access, flushes, and a gateway's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response

from lakesync.runtime.api import shapes
from lakesync.runtime.api.access import add_access_routes
from lakesync.runtime.api.action_admin import add_action_routes
from lakesync.runtime.api.audit import add_audit_route
from lakesync.runtime.api.clients import add_client_routes
from lakesync.runtime.api.connectors import add_connector_routes
from lakesync.runtime.api.deletion import add_deletion_route
from lakesync.runtime.api.destinations import add_destination_routes
from lakesync.runtime.api.flows import add_flow_routes
from lakesync.runtime.api.flushing import add_flush_routes
from lakesync.runtime.api.registry import add_schema_routes
from lakesync.runtime.api.rules import add_rules_routes
from lakesync.runtime.api.tables import add_table_routes
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import Client, Gateway, answer_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.actions.admin import ActionAdmin
    from lakesync.connectors.admin import ConnectorAdmin
    from lakesync.flows.admin import FlowAdmin
    from lakesync.gateway.access import AccessAdmin
    from lakesync.gateway.admin import AdminService
    from lakesync.gateway.audit import Audit
    from lakesync.gateway.clients import ClientsAdmin
    from lakesync.gateway.destinations import DestinationAdmin
    from lakesync.runtime.api.deletion import DeleteNow
    from lakesync.runtime.api.flushing import FlushNow

ByTable = Annotated[
    bool,
    Query(
        alias="tables",
        description="Also count each table: what waits is read, and rows up to a bound.",
    ),
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
    add_flush_routes(router, service, flush_now)
    add_deletion_route(router, access, delete_now)
    add_audit_route(router, audit)
    add_client_routes(router, clients)

    documented = shapes.answers("Metrics", "The buffer, in numbers.")
    by_table = shapes.answers("TableMetrics", "The buffer, in numbers, and by table if asked for.")

    @router.get(
        "/admin/metrics/{gateway}",
        tags=["admin"],
        summary="Buffer statistics",
        operation_id="adminMetrics",
        response_class=Response,
        responses=by_table,
    )
    async def admin_metrics(
        gateway: Gateway,
        request: Request,
        tables: ByTable = False,  # noqa: FBT002 - FastAPI passes it by name
    ) -> Response:
        """Return how much waits to be flushed, for how long, and how far the log is."""
        each = {"byTable": service.table_metrics(gateway)} if tables else {}
        return answer_json(request, {**service.metrics(gateway), **each})

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
