"""The administrative routes, and a gateway's state in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter, Depends, Request, Response

from lakesync.core.rules_json import rules_to_json
from lakesync.core.values import parse
from lakesync.errors import ValidationFailed
from lakesync.runtime.api import schemas
from lakesync.runtime.bodies import Encoding, request_encoding
from lakesync.runtime.http import (
    Gateway,
    admin_of_gateway,
    answer_json,
    body_of,
    client_of_gateway,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.gateway.admin import AdminService

    FlushNow = Callable[[str], Mapping[str, object]]

SCHEMA_BODY_BYTES_MAX: Final = 256 * 1024
"""A schema of 500 columns fits many times over."""
RULES_BODY_BYTES_MAX: Final = 256 * 1024
"""Sync rules: all that a gateway may have fit."""
_ADMIN: Final = [Depends(admin_of_gateway)]
_CLIENT: Final = [Depends(client_of_gateway)]


def admin_routes(service: AdminService, flush_now: FlushNow) -> APIRouter:
    """Give the routes around the service.

    Args:
        service: what changes and shows a gateway's configuration.
        flush_now: flushes one gateway and gives what was done, or raises `LakeSyncError`.
    """
    router = APIRouter()

    @router.post(
        "/admin/schema/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Register or evolve a table's schema",
        operation_id="registerSchema",
        response_class=Response,
        responses=schemas.answers("Saved", "In force.", 409, 413),
        openapi_extra=schemas.takes("TableSchema"),
    )
    async def register_schema(gateway: Gateway, request: Request) -> Response:
        """Put a schema in force. It only ever grows: nullable columns, wider types."""
        body = await _json_of(request, "a schema is JSON", SCHEMA_BODY_BYTES_MAX)
        schema = service.register_schema(gateway, body).unwrap()
        return answer_json(request, {"saved": True, "version": schema.version})

    @router.post(
        "/admin/sync-rules/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Put sync rules in force",
        operation_id="saveSyncRules",
        response_class=Response,
        responses=schemas.answers("Saved", "In force.", 413),
        openapi_extra=schemas.takes("SyncRules"),
    )
    async def save_rules(gateway: Gateway, request: Request) -> Response:
        """Say which rows each client sees and writes, from now on; every fault is named at once."""
        body = await _json_of(request, "sync rules are JSON", RULES_BODY_BYTES_MAX)
        service.save_rules(gateway, body).unwrap()
        return answer_json(request, {"saved": True})

    @router.get(
        "/admin/sync-rules/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="The sync rules in force",
        operation_id="syncRules",
        response_class=Response,
        responses=schemas.answers("SyncRules", "As they were saved."),
    )
    async def rules(gateway: Gateway, request: Request) -> Response:
        """Give the rules as they can be saved again."""
        return answer_json(request, rules_to_json(service.rules(gateway).unwrap()))

    @router.post(
        "/admin/flush/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Flush now",
        operation_id="flush",
        response_class=Response,
        responses=schemas.answers("Flushed", "All is announced.", 502),
    )
    async def flush(gateway: Gateway, request: Request) -> Response:
        """Write what waits in the buffer to the lake's store and announce it. Safe to repeat."""
        return answer_json(request, {"flushed": True, **flush_now(gateway)})

    def metrics(gateway: str, request: Request) -> Response:
        return answer_json(request, service.metrics(gateway).unwrap())

    documented = schemas.answers("Metrics", "The buffer, in numbers.")

    @router.get(
        "/admin/metrics/{gateway}",
        dependencies=_ADMIN,
        tags=["admin"],
        summary="Buffer statistics",
        operation_id="adminMetrics",
        response_class=Response,
        responses=documented,
    )
    async def admin_metrics(gateway: Gateway, request: Request) -> Response:
        """Give how much waits to be flushed, for how long, and how far the log is."""
        return metrics(gateway, request)

    @router.get(
        "/sync/{gateway}/metrics",
        dependencies=_CLIENT,
        tags=["sync"],
        summary="Buffer statistics",
        operation_id="metrics",
        response_class=Response,
        responses=documented,
    )
    async def sync_metrics(gateway: Gateway, request: Request) -> Response:
        """Give how much waits to be flushed, for how long, and how far the log is."""
        return metrics(gateway, request)

    return router


async def _json_of(request: Request, told: str, bytes_max: int) -> object:
    if request_encoding(request.headers.get("content-type")) is not Encoding.JSON:
        raise ValidationFailed(told, field="Content-Type")
    body: object = parse(await body_of(request, bytes_max))
    return body
