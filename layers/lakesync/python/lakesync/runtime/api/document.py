"""The whole API as one OpenAPI document, although each family is a function of its own."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from lakesync.runtime.api import schemas
from lakesync.runtime.api.actions import action_routes
from lakesync.runtime.api.admin import admin_routes
from lakesync.runtime.api.outlets import webhook_routes
from lakesync.runtime.api.pull import checkpoint_routes, pull_routes, ticket_routes
from lakesync.runtime.api.push import attachment_routes, push_routes

if TYPE_CHECKING:
    from fastapi import APIRouter

_DESCRIPTION: Final = """\
Offline-first clients push and pull column-level changes; the same rows reach the lake.

Every address is served with and without the `/v1` prefix. 64-bit stamps are decimal strings.
"""


class Description:
    """What the API offers, made of the very routes that the functions serve.

    Args:
        open_routes: those that need no token; they serve the description, and pass themselves.
    """

    def __init__(self, open_routes: APIRouter) -> None:
        # Describing calls no service, so there is none.
        nothing: Any = None
        families = (
            open_routes,
            push_routes(nothing, nothing, body_bytes_max=0),
            pull_routes(nothing),
            checkpoint_routes(nothing),
            ticket_routes(nothing),
            action_routes(nothing),
            attachment_routes(nothing, nothing),
            webhook_routes(nothing),
            admin_routes(*[nothing] * 10),
        )
        self._routes = [route for family in families for route in family.routes]

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = get_openapi(
            title="LakeSync", version="1", description=_DESCRIPTION, routes=self._routes
        )
        document["servers"] = [{"url": "/"}, {"url": "/v1"}]
        for operations in document["paths"].values():
            for operation in operations.values():
                # FastAPI's own answer to a malformed parameter; ours is a 400 with our body.
                operation["responses"].pop("422", None)
        token = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
        document["components"] = {
            "schemas": schemas.COMPONENTS,
            "securitySchemes": {"token": token},
        }
        document["security"] = [{"token": []}]
        return document

    def methods_at(self, path: str) -> list[str]:
        """Return the methods that an address offers; none if there is no such address."""
        return sorted(
            method
            for route in self._routes
            if isinstance(route, APIRoute)
            and route.include_in_schema
            and route.path_regex.match(path)
            for method in route.methods or ()
        )
