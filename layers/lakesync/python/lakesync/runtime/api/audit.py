"""The route by which administrators and operators see who changed what."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.errors import ValidationFailed
from lakesync.gateway.access import USER_BYTES_MAX
from lakesync.gateway.audit import record_to_json
from lakesync.ports import AuditQuery
from lakesync.ports.audit import TIME_DIGITS
from lakesync.runtime.api import shapes
from lakesync.runtime.api.page_cursor import cursor_of, place_of
from lakesync.runtime.http import Gateway, answer_json

if TYPE_CHECKING:
    from lakesync.gateway.audit import Audit

RECORDS_DEFAULT: Final = 50
RECORDS_MAX: Final = 200
"""Audit records of one page: with both their states, under 2 MB."""
_ID: Final = re.compile(rf"[0-9a-f]{{{TIME_DIGITS}}}-[0-9a-f]{{1,64}}")
_TIME_MAX_MS: Final = 1 << 47
Since = Annotated[
    str | None, Query(max_length=40, description="Those from this time on, as ISO 8601.")
]
Until = Annotated[
    str | None, Query(max_length=40, description="Those before this time, as ISO 8601.")
]
WhoAsked = Annotated[
    str,
    Query(alias="who", max_length=USER_BYTES_MAX, description="The user, or ARN, of the change."),
]
Operation = Annotated[
    str, Query(max_length=64, description="The change, as this description names it.")
]
Cursor = Annotated[str, Query(max_length=200, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=RECORDS_MAX, description="Records wanted.")]


def add_audit_route(router: APIRouter, service: Audit) -> None:
    """Add the route around the service."""

    @router.get(
        "/admin/audit/{gateway}",
        tags=["admin"],
        summary="What was changed, when, and by whom",
        operation_id="audit",
        response_class=Response,
        responses=shapes.answers("AuditRecords", "The latest first."),
    )
    async def audit(
        gateway: Gateway,
        request: Request,
        since: Since = None,
        until: Until = None,
        who: WhoAsked = "",
        operation: Operation = "",
        cursor: Cursor = "",
        limit: Limit = RECORDS_DEFAULT,
    ) -> Response:
        """Return records of changes, the latest first; ask again with `next` while there is one.

        If a record says `begun`, it is not known, or not known yet, whether the change took effect.
        A page may hold fewer than `limit` records, even none, and yet have a `next`.
        """
        query = AuditQuery(
            0 if since is None else _ms(since, "since"),
            None if until is None else _ms(until, "until"),
            who,
            operation,
            place_of(cursor, _ID),
            limit,
        )
        records, below = service.records(gateway, query)
        page: dict[str, object] = {"records": list(map(record_to_json, records))}
        return answer_json(request, page | ({"next": cursor_of(below)} if below else {}))


def _ms(text: str, field: str) -> int:
    try:
        at = datetime.fromisoformat(text)
        ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        ms = -1
    if 0 <= ms < _TIME_MAX_MS:
        return ms
    raise ValidationFailed(f"{field} must be a time since 1970: 2026-11-20T10:00:00Z", field=field)
