"""Routes by which administrators manage a gateway: schemas, rules, tables, flushes, deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from lakesync.core.config import flushing_to_json
from lakesync.core.delta import parse
from lakesync.core.layout import DEFAULT_SHARD
from lakesync.core.names import check_table_name
from lakesync.core.rules import rules_to_json
from lakesync.core.schema import respelled, schema_to_json, schemas_to_json
from lakesync.declare.schemas import read_flushing, read_schema, read_strict
from lakesync.declare.sync_rules import rules_reader
from lakesync.errors import NotFound, ValidationFailed
from lakesync.gateway.admin_changes import trial_to_json
from lakesync.log.lanes import pull_units, push_units
from lakesync.ports import GATEWAY_KIND
from lakesync.runtime import api
from lakesync.runtime.api import (
    TABLE_FORM,
    Gateway,
    Path,
    Query,
    Router,
    audited,
    guarded_router,
    tried,
)
from lakesync.runtime.api.access import add_access_routes, add_audit_route, add_client_routes
from lakesync.runtime.api.outlets import (
    add_connector_routes,
    add_destination_routes,
    add_flow_routes,
)
from lakesync.runtime.api.submissions import add_action_routes
from lakesync.runtime.http import answer_json, json_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from lakesync.actions.service import ActionAdmin
    from lakesync.connectors.connector_admin import ConnectorAdmin
    from lakesync.core.layout import Layout
    from lakesync.flows.flow_admin import FlowAdmin
    from lakesync.gateway.access import AccessAdmin
    from lakesync.gateway.admin import AdminService
    from lakesync.gateway.admin_changes import Audit, ReadsRules
    from lakesync.gateway.connected import ClientsAdmin
    from lakesync.gateway.destination_admin import DestinationAdmin
    from lakesync.runtime.api import Asked
    from lakesync.runtime.auth import Caller

    FlushNow = Callable[[str, str], Mapping[str, object]]
    DeleteNow = Callable[[str, str], Mapping[str, object]]

# --- schemas --------------------------------------------------------------------------------------


SCHEMA_BODY_BYTES_MAX: Final = 256 * 1024
"""A schema of 500 columns fits many times over."""
DescribedTable = Annotated[str | None, Query("The one table to describe.", max_length=64)]


def add_schema_routes(router: Router, service: AdminService) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        table = asked.text("table")
        in_force = service.schemas(asked.gateway)
        if not table:
            return "strict", in_force.strict
        states = (schema_to_json(each) for each in in_force.tables if each.table == table)
        return table, next(states, None)

    @router.post(
        "/admin/schema/{gateway}",
        summary="Register or evolve a table's schema; or demand one of every table",
        operation_id="registerSchema",
        responses=api.answers("Saved", "In force.", 409, 413),
        openapi_extra=api.takes("SchemaOrStrict"),
    )
    @audited(shows)
    async def register_schema(gateway: Gateway, request: Request) -> Response:
        """Put a schema in force. It only ever grows: nullable columns, wider types.

        Names that the table's rows have in another spelling are adopted in that spelling: `spelled`
        says which.
        Or say with `strict` whether deltas of tables without a schema are refused.
        """
        body = await json_body(request, "a schema is JSON", SCHEMA_BODY_BYTES_MAX)
        if isinstance(body, dict) and body.keys() == {"strict"}:
            service.set_strict(gateway, strict=read_strict(body))
            return answer_json(request, {"saved": True})
        wanted = read_schema(body)
        schema = service.register_schema(gateway, wanted)
        spelled = respelled(wanted, schema)
        saved = {"saved": True, "version": schema.version}
        return answer_json(request, saved | ({"spelled": spelled} if spelled else {}))

    @router.get(
        "/admin/schema/{gateway}",
        summary="The schemas in force",
        operation_id="schemas",
        responses=api.answers("Schemas", "All tables', or one's.", 404),
    )
    async def list_schemas(
        gateway: Gateway, request: Request, table: DescribedTable = None
    ) -> Response:
        """Return schemas as they can be registered again, each with its version."""
        return answer_json(request, schemas_to_json(service.schemas(gateway, table)))

    @router.get(
        "/sync/{gateway}/schema",
        summary="The schemas of the tables that the caller may see",
        operation_id="clientSchemas",
        responses=api.answers("Schemas", "Those that the rules can show the caller."),
    )
    async def client_schemas(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Return schemas, for who met another `schemaVersion` in a page than before."""
        visible = service.schemas_for(gateway, client.token.all)
        return answer_json(request, schemas_to_json(visible))


# --- sync rules -----------------------------------------------------------------------------------


RULES_BODY_BYTES_MAX: Final = 256 * 1024
"""Sync rules: all that a gateway may have fit."""
CLAIMS_CHARACTERS_MAX: Final = 6 * 1024
"""Claims whose rows a dry run is asked for: as many as a token may hold."""
RulesDryRun = Annotated[
    bool, Query("Save nothing; answer what the rules would do.", alias="dryRun")
]
As = Annotated[
    str | None,
    Query(
        "Claims of a client as a JSON object, `gw` apart: whose rows are wanted.",
        alias="as",
        max_length=CLAIMS_CHARACTERS_MAX,
    ),
]


def add_rules_routes(router: Router, service: AdminService) -> None:
    """Add the routes around the service."""

    @router.post(
        "/admin/sync-rules/{gateway}",
        summary="Put sync rules in force, or try them",
        operation_id="saveSyncRules",
        responses=api.answers("SavedOrTried", "In force; or what they would do.", 413),
        openapi_extra=api.takes("SyncRules"),
    )
    @audited(lambda asked: ("", rules_to_json(service.rules(asked.gateway))))
    async def save_rules(
        gateway: Gateway,
        request: Request,
        dry_run: RulesDryRun = False,  # noqa: FBT002 - passed by name
        claims: As = None,
    ) -> Response:
        """Set which rows each client sees and writes from now on; all faults are reported at once.

        With `dryRun` nothing is saved: the answer names the tables that the rules concern, and,
        with `as`, the rows that such a client would see, gain and lose compared with the rules in
        force.
        """
        body = await json_body(request, "sync rules are JSON", RULES_BODY_BYTES_MAX)
        reads = rules_reader(body)
        viewer = None if claims is None else _claims(claims)
        if dry_run:
            tried(request)
            trial = service.try_rules(gateway, reads, viewer)
            return answer_json(request, trial_to_json(trial) | _warnings(service, gateway, reads))
        if viewer is not None:
            raise ValidationFailed("as goes with dryRun=true: nothing was saved", field="as")
        service.save_rules(gateway, reads)
        return answer_json(request, {"saved": True} | _warnings(service, gateway, reads))

    @router.get(
        "/admin/sync-rules/{gateway}",
        summary="The sync rules in force",
        operation_id="syncRules",
        responses=api.answers("SyncRules", "As they were saved."),
    )
    async def rules(gateway: Gateway, request: Request) -> Response:
        """Return the rules as they can be saved again."""
        return answer_json(request, rules_to_json(service.rules(gateway)))


def _warnings(service: AdminService, gateway: str, reads: ReadsRules) -> dict[str, object]:
    warnings = service.warnings(gateway, reads)
    listed = [{"path": warning.path, "warning": warning.message} for warning in warnings]
    return {"warnings": listed} if listed else {}


def _claims(text: str) -> dict[str, Any]:
    try:
        claims = parse(text.encode())
    except (ValidationFailed, UnicodeEncodeError):
        claims = None
    if not isinstance(claims, dict):
        raise ValidationFailed(
            'as must be a JSON object of token claims, URL-encoded: {"sub": "c1"}', field="as"
        )
    return claims


# --- tables ---------------------------------------------------------------------------------------


PLACEMENT_BODY_BYTES_MAX: Final = 4_096
"""A placement names one table and one shard."""
Table = Annotated[str, Path("The table's name.", max_length=64)]
TablesDryRun = Annotated[
    bool, Query("Change nothing; only check whether it may be done.", alias="dryRun")
]
_SHAPE: Final = 'send {"table": "…", "shard": "…"}, and "dryRun": true to change nothing'


def add_table_routes(router: Router, service: AdminService) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        table = asked.text("table")
        return table, service.layout(asked.gateway).tables.get(table, DEFAULT_SHARD)

    @router.get(
        "/admin/tables/{gateway}",
        summary="Which shard each table is in",
        operation_id="tables",
        responses=api.answers("Tables", "Tables that were placed, and all shards."),
    )
    async def tables(gateway: Gateway, request: Request) -> Response:
        """Return the tables that are not in the default shard, and the existing shards."""
        return answer_json(request, _shown(service.layout(gateway)))

    @router.delete(
        "/admin/tables/{gateway}/{name}",
        summary="Remove a table of which nothing is left",
        operation_id="removeTable",
        responses=api.answers("Removed", "It is gone, unless it was only tried.", 404, 409),
    )
    @audited(lambda asked: (asked.name, service.knows_table(asked.gateway, asked.name)))
    async def remove(
        gateway: Gateway,
        name: Table,
        request: Request,
        dry_run: TablesDryRun = False,  # noqa: FBT002 - passed by name
    ) -> Response:
        """Remove a table without a schema, without a bucket that names it, and without data here.

        Its data in the lake and in destinations stays. A push may declare the name again.
        """
        if dry_run:
            tried(request)
        service.remove_table(gateway, name, dry_run=dry_run)
        return answer_json(request, {"removed": not dry_run, "table": name})

    @router.post(
        "/admin/tables/{gateway}",
        summary="Put a table into a shard",
        operation_id="placeTable",
        responses=api.answers("Placed", "In force, unless it was only tried.", 409, 413),
        openapi_extra=api.takes("Placement"),
    )
    @audited(shows)
    async def place(gateway: Gateway, request: Request) -> Response:
        """Set the shard of a table's later commits; its rows stay. Safe to repeat."""
        table, shard, dry_run = _placement(
            await json_body(request, _SHAPE, PLACEMENT_BODY_BYTES_MAX)
        )
        if dry_run:
            tried(request)
        before = service.layout(gateway)
        after = service.place_table(gateway, table, shard, dry_run=dry_run).layout
        costs = _costs(gateway, table, (before, after))
        placed = {"saved": not dry_run, "table": table, "shard": shard, **costs}
        return answer_json(request, {**placed, **_shown(after)})


def _placement(body: object) -> tuple[str, str, bool]:
    if isinstance(body, dict) and {"table", "shard"} <= body.keys() <= {"table", "shard", "dryRun"}:
        table, shard, dry_run = body["table"], body["shard"], body.get("dryRun", False)
        if isinstance(table, str) and isinstance(shard, str) and isinstance(dry_run, bool):
            return check_table_name(table, "table"), shard, dry_run
    raise ValidationFailed(_SHAPE)


def _shown(layout: Layout) -> dict[str, object]:
    return {"tables": dict(sorted(layout.tables.items())), "shards": list(layout.shards())}


def _costs(gateway: str, table: str, layouts: tuple[Layout, Layout]) -> dict[str, object]:
    """Return the most that an empty pull reads, and what a small push writes."""
    pulls = [pull_units(gateway, layout) for layout in layouts]
    pushes = [push_units(gateway, layout.shard_of(table), layout) for layout in layouts]
    return {
        "pullReadUnits": {"before": pulls[0], "after": pulls[1]},
        "pushWriteUnits": {"before": pushes[0], "after": pushes[1]},
    }


# --- flushes --------------------------------------------------------------------------------------


FLUSHING_BODY_BYTES_MAX: Final = 64 * 1024
"""A declaration: all budgets that there may be fit."""
FlushedTable = Annotated[str, Query("Flush only this table.", alias="table", pattern=TABLE_FORM)]


def add_flush_routes(router: Router, service: AdminService, flush_now: FlushNow) -> None:
    """Add the routes around the service."""

    @router.post(
        "/admin/flush/{gateway}",
        summary="Flush now, everything or one table",
        operation_id="flush",
        responses=api.answers("Flushed", "All that was asked for is announced.", 404, 502),
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

    @router.get(
        "/admin/flushing/{gateway}",
        summary="When the gateway is flushed",
        operation_id="flushing",
        responses=api.answers("Flushing", "As it was declared."),
    )
    async def flushing(gateway: Gateway, request: Request) -> Response:
        """Return the declaration as it can be saved again; 0 is as the stack has it."""
        return answer_json(request, flushing_to_json(service.flushing(gateway)))

    @router.post(
        "/admin/flushing/{gateway}",
        summary="Declare when the gateway is flushed",
        operation_id="saveFlushing",
        responses=api.answers("FlushingSaved", "In force.", 409, 413),
        openapi_extra=api.takes("Flushing"),
    )
    @audited(lambda asked: ("", flushing_to_json(service.flushing(asked.gateway))))
    async def save_flushing(gateway: Gateway, request: Request) -> Response:
        """Let the gateway wait longer than the schedule, and set thresholds. Safe to repeat.

        What the body leaves out is as the stack has it; a body without fields undoes all of it.
        """
        body = await json_body(request, "a declaration is JSON", FLUSHING_BODY_BYTES_MAX)
        saved = service.save_flushing(gateway, read_flushing(body))
        return answer_json(request, {"saved": True, **flushing_to_json(saved)})


# --- deletion -------------------------------------------------------------------------------------


def add_deletion_route(router: Router, access: AccessAdmin, delete_now: DeleteNow) -> None:
    """Add the route around a function that deletes a gateway for a user and reports progress."""

    def shows(asked: Asked) -> tuple[str, object]:
        revoked = access.revocations(asked.gateway)
        return "", {"deleted": any(each.kind == GATEWAY_KIND for each in revoked)}

    @router.delete(
        "/admin/gateways/{gateway}",
        summary="Delete the gateway, for good",
        operation_id="deleteGateway",
        responses=api.answers("Deletion", "How far that is; ask again if not gone.", 404, 502),
    )
    @audited(shows)
    async def delete_gateway(gateway: Gateway, caller: Caller, request: Request) -> Response:
        """Remove everything that is stored of the gateway, and count what is left. Safe to repeat.

        From the first answer on nothing is accepted. Its id is never used again.
        """
        return answer_json(request, delete_now(gateway, caller.token.user))


# --- all of them, and metrics ---------------------------------------------------------------------


ByTable = Annotated[
    bool,
    Query("Also count each table: what waits is read, and rows up to a bound.", alias="tables"),
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
) -> Router:
    """Return the routes around the services."""
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

    documented = api.answers("Metrics", "The buffer, in numbers.")
    by_table = api.answers("TableMetrics", "The buffer, in numbers, and by table if asked for.")

    @router.get(
        "/admin/metrics/{gateway}",
        summary="Buffer statistics",
        operation_id="adminMetrics",
        responses=by_table,
    )
    async def admin_metrics(
        gateway: Gateway,
        request: Request,
        tables: ByTable = False,  # noqa: FBT002 - passed by name
    ) -> Response:
        """Return how much waits to be flushed, for how long, and how far the log is."""
        each = {"byTable": service.table_metrics(gateway)} if tables else {}
        return answer_json(request, {**service.metrics(gateway), **each})

    @router.get(
        "/sync/{gateway}/metrics",
        summary="Buffer statistics of what the caller may see",
        operation_id="metrics",
        responses=documented,
    )
    async def sync_metrics(gateway: Gateway, client: Caller, request: Request) -> Response:
        """Get the same; only the tables and `headHlc` where rules keep anything from the caller."""
        claims = None if client.is_administrator else client.token.all
        return answer_json(request, service.metrics(gateway, claims))

    return router
