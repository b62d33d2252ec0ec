"""Routes that flush a gateway or one of its tables, and that declare when that happens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.flushing import flushing_to_json
from lakesync.errors import NotFound
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited
from lakesync.runtime.http import Gateway, answer_json, json_body
from lakesync.runtime.parameters import TABLE_FORM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.gateway.admin import AdminService

    FlushNow = Callable[[str, str], Mapping[str, object]]

FLUSHING_BODY_BYTES_MAX: Final = 64 * 1024
"""A declaration: all budgets that there may be fit."""
Table = Annotated[
    str, Query(alias="table", pattern=TABLE_FORM, description="Flush only this table.")
]


def add_flush_routes(router: APIRouter, service: AdminService, flush_now: FlushNow) -> None:
    """Add the routes around the service.

    Args:
        router: gets the routes.
        service: changes and shows a gateway's configuration.
        flush_now: flushes one gateway, or a table of it, and reports what was done, or raises
            `LakeSyncError`.
    """

    @router.post(
        "/admin/flush/{gateway}",
        tags=["admin"],
        summary="Flush now, everything or one table",
        operation_id="flush",
        response_class=Response,
        responses=shapes.answers("Flushed", "All that was asked for is announced.", 404, 502),
    )
    @audited(lambda asked: ("", service.metrics(asked.gateway).get("flushedHlc")))
    async def flush(gateway: Gateway, request: Request, table: Table = "") -> Response:
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
        tags=["admin"],
        summary="When the gateway is flushed",
        operation_id="flushing",
        response_class=Response,
        responses=shapes.answers("Flushing", "As it was declared."),
    )
    async def flushing(gateway: Gateway, request: Request) -> Response:
        """Return the declaration as it can be saved again; 0 is as the stack has it."""
        return answer_json(request, flushing_to_json(service.flushing(gateway)))

    @router.post(
        "/admin/flushing/{gateway}",
        tags=["admin"],
        summary="Declare when the gateway is flushed",
        operation_id="saveFlushing",
        response_class=Response,
        responses=shapes.answers("FlushingSaved", "In force.", 409, 413),
        openapi_extra=shapes.takes("Flushing"),
    )
    @audited(lambda asked: ("", flushing_to_json(service.flushing(asked.gateway))))
    async def save_flushing(gateway: Gateway, request: Request) -> Response:
        """Let the gateway wait longer than the schedule, and set thresholds. Safe to repeat.

        What the body leaves out is as the stack has it; a body without fields undoes all of it.
        """
        body = await json_body(request, "a declaration is JSON", FLUSHING_BODY_BYTES_MAX)
        saved = service.save_flushing(gateway, body)
        return answer_json(request, {"saved": True, **flushing_to_json(saved)})
