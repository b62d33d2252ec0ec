"""Routes for who uses a gateway: access, clients, and the audit of administrators' changes.

Administrators list, revoke and restore access, and disconnect clients; operators see who is
connected or behind, and who changed what. Long lists are given page by page.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from lakesync.core.wording import utc_text
from lakesync.errors import ValidationFailed
from lakesync.gateway.access import KINDS, USER_BYTES_MAX
from lakesync.gateway.admin_changes import record_to_json
from lakesync.ports import AuditQuery
from lakesync.ports.stores import TIME_DIGITS
from lakesync.runtime import api
from lakesync.runtime.api import Gateway, Query, Router, audited
from lakesync.runtime.http import answer_json, json_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from lakesync.gateway.access import AccessAdmin
    from lakesync.gateway.admin_changes import Audit
    from lakesync.gateway.connected import ClientReport, ClientsAdmin
    from lakesync.ports import Revocation
    from lakesync.runtime.api import Asked
    from lakesync.runtime.auth import Caller

# --- pages of a list ------------------------------------------------------------------------------


def cursor_of(place: str) -> str:
    """Return the cursor that `place_of` reads, safe in a URL."""
    return urlsafe_b64encode(place.encode()).decode()


def place_of(cursor: str, pattern: re.Pattern[str]) -> str:
    """Return the place in the list that a cursor represents; it matches the pattern as a whole.

    No cursor is the beginning of the list, and gives no place.

    Raises:
        ValidationFailed: no page of this list gave the cursor.
    """
    if not cursor:
        return ""
    try:
        place = urlsafe_b64decode(cursor.encode()).decode()
    except ValueError:  # of base64 too
        place = ""
    if pattern.fullmatch(place) is None:
        raise ValidationFailed("cursor must be `next` of the page before", field="cursor")
    return place


# --- access ---------------------------------------------------------------------------------------


ACCESS_BODY_BYTES_MAX: Final = 4_096
"""A change of access names one user or client."""
_SHAPE: Final = (
    'send one of {"revoke": {"user": "…"}}, {"restore": {"client": "…"}}, {"release": '
    '{"client": "…"}}; what is revoked or restored is a user or a client'
)
ClientId = Annotated[str | None, Query("A client id: also say whose it is.", alias="client")]


def add_access_routes(router: Router, service: AccessAdmin) -> None:
    """Add the routes around the service."""

    def shows(asked: Asked) -> tuple[str, object]:
        action, kind, name = _change(asked.body)
        if action == "release":
            return f"{kind} {name}", {"user": service.user_of(asked.gateway, name)}
        revoked = service.revocations(asked.gateway)
        shown = (_shown(each) for each in revoked if (each.kind, each.name) == (kind, name))
        return f"{kind} {name}", next(shown, None)

    @router.get(
        "/admin/access/{gateway}",
        summary="Revoked users and clients, and the user of a client",
        operation_id="access",
        responses=api.answers("Access", "Users and clients that are refused."),
    )
    async def access(gateway: Gateway, request: Request, client: ClientId = None) -> Response:
        """Return all revoked users and clients; and a client's user, if one is named."""
        listed: dict[str, object] = {"revoked": list(map(_shown, service.revocations(gateway)))}
        if client is not None:
            listed |= {"client": client, "user": service.user_of(gateway, client)}
        return answer_json(request, listed)

    @router.post(
        "/admin/access/{gateway}",
        summary="Revoke or restore a user or a client, or release a client from its user",
        operation_id="changeAccess",
        responses=api.answers("Saved", "In force within a minute.", 413),
        openapi_extra=api.takes("AccessChange"),
    )
    @audited(shows)
    async def change_access(gateway: Gateway, caller: Caller, request: Request) -> Response:
        """Change who may use the gateway. Safe to repeat."""
        body = await json_body(request, _SHAPE, ACCESS_BODY_BYTES_MAX)
        action, kind, name = _change(body)
        if action == "revoke":
            service.revoke(gateway, kind, name, by=caller.token.user)
        elif action == "restore":
            service.restore(gateway, kind, name)
        else:
            service.release(gateway, name)
        return answer_json(request, {"saved": True})


def _change(body: object) -> tuple[str, str, str]:
    if isinstance(body, dict) and len(body) == 1:
        ((action, target),) = body.items()
        kinds = {"revoke": KINDS, "restore": KINDS, "release": ("client",)}.get(action, ())
        if isinstance(target, dict) and len(target) == 1:
            ((kind, name),) = target.items()
            if kind in kinds and isinstance(name, str):
                return action, kind, name
    raise ValidationFailed(_SHAPE)


def _shown(revocation: Revocation) -> dict[str, object]:
    return {
        revocation.kind: revocation.name,
        "at": utc_text(revocation.at_ms),
        "by": revocation.by,
    }


# --- clients --------------------------------------------------------------------------------------


CLIENTS_DEFAULT: Final = 50
CLIENTS_MAX: Final = 200
"""Clients of one page: what is remembered of each is read by itself."""
CLIENTS_BODY_BYTES_MAX: Final = 4_096
"""A request to disconnect names one client."""
_DISCONNECT_SHAPE: Final = 'send {"disconnect": {"client": "…"}}'
_PLACE: Final = re.compile(r"[0-9a-f].*", re.DOTALL)
Cursor = Annotated[str, Query("`next` of the page before.", max_length=600)]
Limit = Annotated[int, Query("Clients wanted.", ge=1, le=CLIENTS_MAX)]


def add_client_routes(router: Router, service: Callable[[], ClientsAdmin]) -> None:
    """Add the routes around the service, which is made when it is first asked."""

    def shows(asked: Asked) -> tuple[str, object]:
        name = _client(asked.body)
        return f"client {name}", {"connections": len(service().connected(asked.gateway, name))}

    @router.get(
        "/admin/clients/{gateway}",
        summary="The clients: whose each is, whether it is connected, and how far behind",
        operation_id="clients",
        responses=api.answers("Clients", "Some of them; ask again with `next`."),
    )
    async def clients(
        gateway: Gateway, request: Request, cursor: Cursor = "", limit: Limit = CLIENTS_DEFAULT
    ) -> Response:
        """Return clients that ever came, in no order of interest.

        A client's position is noted as it pulls, at most every quarter of an hour, and not while it
        has read everything: `behindMs` is never too small, and for a client that keeps reading it
        is too large by at most that much.
        """
        reports, place = service().clients(gateway, place_of(cursor, _PLACE), limit)
        page: dict[str, object] = {"clients": list(map(_shown_client, reports))}
        following = {"next": cursor_of(place)} if place else {}
        return answer_json(request, page | following)

    @router.post(
        "/admin/clients/{gateway}",
        summary="Close a client's connections",
        operation_id="disconnectClient",
        responses=api.answers("Disconnected", "It may connect again.", 413, 502),
        openapi_extra=api.takes("Disconnect"),
    )
    @audited(shows)
    async def disconnect(gateway: Gateway, request: Request) -> Response:
        """Close a client's connections, with a reason. It may connect again. Safe to repeat."""
        body = await json_body(request, _DISCONNECT_SHAPE, CLIENTS_BODY_BYTES_MAX)
        closed = service().disconnect(gateway, _client(body))
        return answer_json(request, {"disconnected": closed})


def _client(body: object) -> str:
    target = body.get("disconnect") if isinstance(body, dict) and len(body) == 1 else None
    if isinstance(target, dict) and len(target) == 1 and isinstance(target.get("client"), str):
        return str(target["client"])
    raise ValidationFailed(_DISCONNECT_SHAPE)


def _shown_client(report: ClientReport) -> dict[str, Any]:
    return {
        "client": report.client_id,
        "user": report.user,
        "connections": [
            {
                "openedAt": utc_text(each.opened_ms),
                "expiresAt": utc_text(int(each.expires_s * 1000)),
            }
            for each in report.connections
        ],
        "revoked": report.is_revoked,
        "behindMs": report.behind_ms,
        "quarantined": report.seen.quarantined if report.seen else None,
        "notedAt": utc_text(report.seen.at_ms) if report.seen else None,
    }


# --- audit ----------------------------------------------------------------------------------------


RECORDS_DEFAULT: Final = 50
RECORDS_MAX: Final = 200
"""Audit records of one page: with both their states, under 2 MB."""
_ID: Final = re.compile(rf"[0-9a-f]{{{TIME_DIGITS}}}-[0-9a-f]{{1,64}}")
_TIME_MAX_MS: Final = 1 << 47
Since = Annotated[str | None, Query("Those from this time on, as ISO 8601.", max_length=40)]
Until = Annotated[str | None, Query("Those before this time, as ISO 8601.", max_length=40)]
WhoAsked = Annotated[
    str,
    Query("The user, or ARN, of the change.", alias="who", max_length=USER_BYTES_MAX),
]
Operation = Annotated[str, Query("The change, as this description names it.", max_length=64)]
RecordsCursor = Annotated[str, Query("`next` of the page before.", max_length=200)]
RecordsLimit = Annotated[int, Query("Records wanted.", ge=1, le=RECORDS_MAX)]


def add_audit_route(router: Router, service: Audit) -> None:
    """Add the route around the service."""

    @router.get(
        "/admin/audit/{gateway}",
        summary="What was changed, when, and by whom",
        operation_id="audit",
        responses=api.answers("AuditRecords", "The latest first."),
    )
    async def audit(
        gateway: Gateway,
        request: Request,
        since: Since = None,
        until: Until = None,
        who: WhoAsked = "",
        operation: Operation = "",
        cursor: RecordsCursor = "",
        limit: RecordsLimit = RECORDS_DEFAULT,
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
