"""Routes for sync rules: administrators try them, put them in force and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from lakesync.core.rules import rules_to_json
from lakesync.core.values import parse
from lakesync.errors import ValidationFailed
from lakesync.gateway.rules_dry_run import trial_to_json
from lakesync.runtime.api import shapes
from lakesync.runtime.guard import audited, tried
from lakesync.runtime.http import Gateway, answer_json, json_body

if TYPE_CHECKING:
    from lakesync.gateway.admin import AdminService

RULES_BODY_BYTES_MAX: Final = 256 * 1024
"""Sync rules: all that a gateway may have fit."""
CLAIMS_CHARACTERS_MAX: Final = 6 * 1024
"""Claims whose rows a dry run is asked for: as many as a token may hold."""
DryRun = Annotated[
    bool, Query(alias="dryRun", description="Save nothing; answer what the rules would do.")
]
As = Annotated[
    str | None,
    Query(
        alias="as",
        max_length=CLAIMS_CHARACTERS_MAX,
        description="Claims of a client as a JSON object, `gw` apart: whose rows are wanted.",
    ),
]


def add_rules_routes(router: APIRouter, service: AdminService) -> None:
    """Add the routes around the service."""

    @router.post(
        "/admin/sync-rules/{gateway}",
        tags=["admin"],
        summary="Put sync rules in force, or try them",
        operation_id="saveSyncRules",
        response_class=Response,
        responses=shapes.answers("SavedOrTried", "In force; or what they would do.", 413),
        openapi_extra=shapes.takes("SyncRules"),
    )
    @audited(lambda asked: ("", rules_to_json(service.rules(asked.gateway))))
    async def save_rules(
        gateway: Gateway,
        request: Request,
        dry_run: DryRun = False,  # noqa: FBT002 - FastAPI passes it by name
        claims: As = None,
    ) -> Response:
        """Set which rows each client sees and writes from now on; all faults are reported at once.

        With `dryRun` nothing is saved: the answer names the tables that the rules concern, and,
        with `as`, the rows that such a client would see, gain and lose compared with the rules in
        force.
        """
        body = await json_body(request, "sync rules are JSON", RULES_BODY_BYTES_MAX)
        viewer = None if claims is None else _claims(claims)
        if dry_run:
            tried(request)
            trial = service.try_rules(gateway, body, viewer)
            return answer_json(request, trial_to_json(trial) | _warnings(service, gateway, body))
        if viewer is not None:
            raise ValidationFailed("as goes with dryRun=true: nothing was saved", field="as")
        service.save_rules(gateway, body)
        return answer_json(request, {"saved": True} | _warnings(service, gateway, body))

    @router.get(
        "/admin/sync-rules/{gateway}",
        tags=["admin"],
        summary="The sync rules in force",
        operation_id="syncRules",
        response_class=Response,
        responses=shapes.answers("SyncRules", "As they were saved."),
    )
    async def rules(gateway: Gateway, request: Request) -> Response:
        """Return the rules as they can be saved again."""
        return answer_json(request, rules_to_json(service.rules(gateway)))


def _warnings(service: AdminService, gateway: str, body: object) -> dict[str, object]:
    warnings = service.warnings(gateway, body)
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
