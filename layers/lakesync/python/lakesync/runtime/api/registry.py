"""Routes for schemas: administrators register and list them, clients read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.schema_json import schema_from_json, schema_to_json, schemas_to_json
from lakesync.core.spelling import respelled
from lakesync.errors import ValidationFailed
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited
from lakesync.runtime.http import Client, Gateway, answer_json, json_body

if TYPE_CHECKING:
    from lakesync.gateway.admin import AdminService
    from lakesync.runtime.guard import Asked

SCHEMA_BODY_BYTES_MAX: Final = 256 * 1024
"""A schema of 500 columns fits many times over."""
Table = Annotated[str | None, Query(max_length=64, description="The one table to describe.")]


def add_schema_routes(router: APIRouter, service: AdminService) -> None:
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
        tags=["admin"],
        summary="Register or evolve a table's schema; or demand one of every table",
        operation_id="registerSchema",
        response_class=Response,
        responses=shapes.answers("Saved", "In force.", 409, 413),
        openapi_extra=shapes.takes("SchemaOrStrict"),
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
            service.set_strict(gateway, strict=_flag(body["strict"]))
            return answer_json(request, {"saved": True})
        schema = service.register_schema(gateway, body)
        spelled = respelled(schema_from_json(body), schema)
        saved = {"saved": True, "version": schema.version}
        return answer_json(request, saved | ({"spelled": spelled} if spelled else {}))

    @router.get(
        "/admin/schema/{gateway}",
        tags=["admin"],
        summary="The schemas in force",
        operation_id="schemas",
        response_class=Response,
        responses=shapes.answers("Schemas", "All tables', or one's.", 404),
    )
    async def list_schemas(gateway: Gateway, request: Request, table: Table = None) -> Response:
        """Return schemas as they can be registered again, each with its version."""
        return answer_json(request, schemas_to_json(service.schemas(gateway, table)))

    @router.get(
        "/sync/{gateway}/schema",
        tags=["sync"],
        summary="The schemas of the tables that the caller may see",
        operation_id="clientSchemas",
        response_class=Response,
        responses=shapes.answers("Schemas", "Those that the rules can show the caller."),
    )
    async def client_schemas(gateway: Gateway, client: Client, request: Request) -> Response:
        """Return schemas, for who met another `schemaVersion` in a page than before."""
        visible = service.schemas_for(gateway, client.token.all)
        return answer_json(request, schemas_to_json(visible))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValidationFailed("strict must be true or false", field="strict")
    return value
