"""``POST /sync/{gateway}/ticket``: a client that cannot send a token asks for a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from lakesync.runtime.api import shapes
from lakesync.runtime.guard import guarded_router
from lakesync.runtime.http import Client, Gateway, answer_json
from lakesync.runtime.realtime.tickets import TICKET_S_MAX

if TYPE_CHECKING:
    from lakesync.runtime.realtime.tickets import SocketTickets


def ticket_routes(tickets: SocketTickets) -> APIRouter:
    """Return the route around what issues tickets."""
    router = guarded_router(tags=["sync"])

    @router.post(
        "/sync/{gateway}/ticket",
        summary="Get a ticket that opens one WebSocket",
        operation_id="ticket",
        response_class=Response,
        responses=shapes.answers("Ticket", "A ticket, for `?ticket=` of a handshake."),
    )
    async def ticket(gateway: Gateway, client: Client, request: Request) -> Response:  # noqa: ARG001 - the guard reads it
        """Return a ticket for one handshake, in place of the token. Each call gives a new one.

        What it opens has the token's claims, and ends when the token would.
        """
        body = {"ticket": tickets.issue(client.token), "expiresInS": TICKET_S_MAX}
        return answer_json(request, body)

    return router
