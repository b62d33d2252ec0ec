"""Routes for tables: administrators list their shards, move tables, and remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from lakesync.core.layout import DEFAULT_SHARD
from lakesync.core.names import check_table_name
from lakesync.errors import ValidationFailed
from lakesync.log.head_room import pull_units, push_units
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited, tried
from lakesync.runtime.http import Gateway, answer_json, json_body

if TYPE_CHECKING:
    from lakesync.core.layout import Layout
    from lakesync.gateway.admin import AdminService
    from lakesync.runtime.guard import Asked

PLACEMENT_BODY_BYTES_MAX: Final = 4_096
"""A placement names one table and one shard."""
Table = Annotated[str, Path(description="The table's name.", max_length=64)]
DryRun = Annotated[
    bool, Query(alias="dryRun", description="Change nothing; only check whether it may be done.")
]
_SHAPE: Final = 'send {"table": "…", "shard": "…"}, and "dryRun": true to change nothing'


def add_table_routes(router: APIRouter, service: AdminService) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        table = asked.text("table")
        return table, service.layout(asked.gateway).tables.get(table, DEFAULT_SHARD)

    @router.get(
        "/admin/tables/{gateway}",
        tags=["admin"],
        summary="Which shard each table is in",
        operation_id="tables",
        response_class=Response,
        responses=shapes.answers("Tables", "Tables that were placed, and all shards."),
    )
    async def tables(gateway: Gateway, request: Request) -> Response:
        """Return the tables that are not in the default shard, and the existing shards."""
        return answer_json(request, _shown(service.layout(gateway)))

    @router.delete(
        "/admin/tables/{gateway}/{name}",
        tags=["admin"],
        summary="Remove a table of which nothing is left",
        operation_id="removeTable",
        response_class=Response,
        responses=shapes.answers("Removed", "It is gone, unless it was only tried.", 404, 409),
    )
    @audited(lambda asked: (asked.name, service.knows_table(asked.gateway, asked.name)))
    async def remove(
        gateway: Gateway,
        name: Table,
        request: Request,
        dry_run: DryRun = False,  # noqa: FBT002 - FastAPI passes it by name
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
        tags=["admin"],
        summary="Put a table into a shard",
        operation_id="placeTable",
        response_class=Response,
        responses=shapes.answers("Placed", "In force, unless it was only tried.", 409, 413),
        openapi_extra=shapes.takes("Placement"),
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
