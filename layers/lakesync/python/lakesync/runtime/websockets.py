"""WebSockets: their handshakes and tickets, the settings of their functions, and what these need.

A handshake is refused with the status of its error; API Gateway shows nothing else of the answer.

The only header of a WebSocket that a browser can set is the list of sub-protocols: ``lakesync.v1``,
or ``lakesync.v1.json`` for frames of JSON, and ``bearer.`` followed by the token. The first that is
ours is chosen; the token is never repeated. A client that can set neither header nor sub-protocol
puts a ticket into the address.

A ticket is part of an address, which may be logged and read: that is why it is good for one
handshake within half a minute, and stored as a digest. It is not the token, and no token can be
derived from it; the connection is bound by the claims and the expiry of the token that requested
it.

The settings add to those of `lakesync.runtime.settings`, as what is built adds to
`lakesync.runtime.wiring`: a module that a function does not use is not imported.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.messages import BEARER, JSON_SUB_PROTOCOL, SUB_PROTOCOL
from lakesync.errors import AuthFailed, InternalError, LakeSyncError, ValidationFailed
from lakesync.gateway.connected import rules_digest, scoped
from lakesync.gateway.frame_sending import SENT_PER_S_MAX
from lakesync.ports import Connection
from lakesync.runtime import observe, wiring
from lakesync.runtime.auth import ALLOWED, caller_of, claims_of, token_claims
from lakesync.runtime.settings import (
    AdminSettings,
    AuthoriseSettings,
    Aws,
    BufferSettings,
    PullSettings,
    PushSettings,
    not_empty,
    positive,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.gateway.access import Access
    from lakesync.gateway.connected import ClientsAdmin
    from lakesync.ports import Configurations, Connections, Sockets, Tickets, WallClock
    from lakesync.runtime.auth import TokenClaims
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.websocket_frames import FrameService

# --- tokens ---------------------------------------------------------------------------------------


NO_SOCKET_TOKEN: Final = (
    "offer the sub-protocols lakesync.v1 and bearer.<JWT>, or fetch a ticket for the address"  # noqa: S105
)


def offered(event: Mapping[str, Any]) -> list[str]:
    """Return the sub-protocols that a handshake offers."""
    headers = event.get("headers") or {}
    text = next(
        (value for name, value in headers.items() if name.lower() == "sec-websocket-protocol"), ""
    )
    return [word.strip() for word in str(text).split(",") if word.strip()]


def socket_token(event: Mapping[str, Any], *, in_query: bool) -> str:
    """Return the token of a handshake.

    Raises:
        AuthFailed: there is none.
    """
    for word in offered(event):
        if word.startswith(BEARER):
            return word.removeprefix(BEARER)
    token = query(event).get("token")
    if in_query and token:
        return token
    raise AuthFailed(NO_SOCKET_TOKEN)


def socket_ticket(event: Mapping[str, Any]) -> str:
    """Return the ticket of a handshake that offers no token; "" if there is none."""
    if any(word.startswith(BEARER) for word in offered(event)):
        return ""
    return query(event).get("ticket", "")


def query(event: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the parameters of a handshake's address."""
    return event.get("queryStringParameters") or {}


def chosen(event: Mapping[str, Any]) -> str:
    """Return the first of the sub-protocols offered that is ours; "" if none is offered.

    Raises:
        ValidationFailed: it offers some, and none is ours.
    """
    words = offered(event)
    ours = [word for word in words if word in {SUB_PROTOCOL, JSON_SUB_PROTOCOL}]
    if words and not ours:
        raise ValidationFailed(f"offer the sub-protocol {SUB_PROTOCOL} or {JSON_SUB_PROTOCOL}")
    return ours[0] if ours else ""


# --- tickets --------------------------------------------------------------------------------------


TICKET_S_MAX: Final = 30
"""How long a ticket is good for: a handshake follows at once."""
_RANDOM_BYTES: Final = 32
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
"""As `_RANDOM_BYTES` are written."""


class SocketTickets:
    """Issues tickets and redeems them."""

    def __init__(
        self,
        tickets: Tickets,
        *,
        wall_clock: WallClock,
        random_text: Callable[[int], str] = secrets.token_urlsafe,
    ) -> None:
        self._tickets = tickets
        self._wall_clock = wall_clock
        self._random_text = random_text

    def issue(self, claims: TokenClaims) -> str:
        """Return a ticket by which one WebSocket can be opened with a token's claims."""
        ticket = self._random_text(_RANDOM_BYTES)
        until_ms = self._wall_clock() + TICKET_S_MAX * 1000
        self._tickets.keep(_digest(ticket), claims.all, until_ms)
        return ticket

    def redeem(self, ticket: str) -> TokenClaims:
        """Return the claims that a ticket was issued for, once.

        Raises:
            AuthFailed: it is invalid, was redeemed, or has expired; the message does not state
                which.
        """
        if _TICKET.fullmatch(ticket):
            claims = self._tickets.take(_digest(ticket), self._wall_clock())
            if claims is not None:
                return token_claims(claims)
        raise AuthFailed(
            "this ticket is unknown, used or expired: fetch a new one for each handshake"
        )


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()


# --- $connect and $disconnect ---------------------------------------------------------------------


def connect_handler(
    connections: Connections, configs: Configurations, access: Access, wall_clock: WallClock
) -> Handler:
    """Return the handler of ``$connect``: by the same token checks as every request over HTTPS."""

    def connect(event: dict[str, Any]) -> dict[str, object]:
        context = event["requestContext"]
        protocol = chosen(event)
        authoriser = context.get("authorizer")
        gateway = claims_of(authoriser).gateway
        now_ms = wall_clock()
        caller = caller_of(authoriser, gateway, now_ms / 1000, access)
        caller.must_be_one_of(ALLOWED["connect"])
        client_id = caller.speaks_for(query(event).get("clientId"))
        config = configs.config(gateway)
        config.check_not_deleted()
        connection = Connection(
            gateway,
            context["connectionId"],
            client_id,
            caller.token.user,
            caller.token.expires_s,
            now_ms,
            caller.token.all,
            is_json=protocol == JSON_SUB_PROTOCOL,
        )
        connections.add(scoped(connection, config, rules_digest(config)))
        observe.count("Connected")
        return {
            "statusCode": 200,
            "headers": {"Sec-WebSocket-Protocol": protocol} if protocol else {},
        }

    return _answering(connect)


def disconnect_handler(connections: Connections) -> Handler:
    """Return the handler of ``$disconnect``, which AWS calls if it can; else the sweep forgets."""

    def disconnect(event: dict[str, Any]) -> dict[str, object]:
        context = event["requestContext"]
        gateway = claims_of(context.get("authorizer")).gateway
        connections.remove(gateway, context["connectionId"])
        return {"statusCode": 200}

    return _answering(disconnect)


def _answering(handle: Callable[[dict[str, Any]], dict[str, object]]) -> Handler:
    """Answer with a raised error's status, by the one table of errors; no event is logged."""

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:  # noqa: ARG001 - AWS's
        request = event.get("requestContext", {})
        where = {"route": str(request.get("routeKey")), "request": str(request.get("requestId"))}
        try:
            return handle(event)
        except LakeSyncError as error:
            observe.failure(error, **where)
            return _refusal(error, where["request"])
        except Exception as exc:  # noqa: BLE001 - a bug is answered, and rings
            observe.bug(exc, **where)
            refused = InternalError("something went wrong here; try again later")
            return _refusal(refused, where["request"])

    return handler


def _refusal(error: LakeSyncError, request_id: str) -> dict[str, object]:
    """Return an error as every answer words it; API Gateway may pass on no more than the status."""
    sentence = error.public_message or error.message
    body = {"error": sentence, "code": error.code, "requestId": request_id}
    return {"statusCode": error.status, "body": json.dumps(body)}


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConnectionsSettings(Aws):
    """The table of open WebSockets: all that ``functions/disconnect`` needs."""

    connections_table: str = variable("CONNECTIONS_TABLE", not_empty)


@dataclass(frozen=True, kw_only=True)
class ConnectSettings(BufferSettings, ConnectionsSettings):
    """What ``functions/connect`` needs."""


@dataclass(frozen=True, kw_only=True)
class AuthoriseFunctionSettings(AuthoriseSettings, ConnectionsSettings):
    """What ``functions/authorise`` needs: also where tickets are."""


@dataclass(frozen=True, kw_only=True)
class PullFunctionSettings(PullSettings, ConnectionsSettings):
    """What ``functions/pull`` needs: also where tickets are."""

    source_function: str = variable("SOURCE_FUNCTION", not_empty)
    """The name of ``functions/pull_source``, which answers pulls from declared databases."""


@dataclass(frozen=True, kw_only=True)
class SocketSettings(ConnectionsSettings):
    """Where frames are posted."""

    socket_host: str = variable("SOCKET_HOST", not_empty)
    """The API's own host name, whatever domain clients use."""
    socket_stage: str = variable("SOCKET_STAGE", not_empty)


@dataclass(frozen=True, kw_only=True)
class FramesSettings(PushSettings, PullSettings, SocketSettings):
    """What ``functions/frames`` needs."""

    actions_function: str = variable("ACTIONS_FUNCTION", not_empty)
    """The name of ``functions/actions``, which runs the actions that come as frames."""


@dataclass(frozen=True, kw_only=True)
class NotifySettings(BufferSettings, SocketSettings):
    """What ``functions/notify`` needs."""

    sent_per_s: int = variable("SENT_PER_S", positive, SENT_PER_S_MAX)
    """Frames that one process sends in a second at the most."""


@dataclass(frozen=True, kw_only=True)
class AdminFunctionSettings(AdminSettings, SocketSettings):
    """What ``functions/admin`` needs: also who is connected."""


# --- composition ----------------------------------------------------------------------------------


def connections(settings: ConnectionsSettings) -> Connections:
    """Return the open WebSockets, in a table of their own."""
    from lakesync.buffer.connections import ItemConnections  # noqa: PLC0415

    return ItemConnections(wiring.item_store(settings, settings.connections_table))


def socket_tickets(settings: ConnectionsSettings) -> SocketTickets:
    """Return the service that issues and redeems tickets."""
    return SocketTickets(tickets(settings), wall_clock=wiring.wall_clock)


def redeemer(settings: ConnectionsSettings) -> Callable[[str], TokenClaims]:
    """Return a function that redeems tickets; DynamoDB's caller is imported at the first ticket."""
    return lambda ticket: socket_tickets(settings).redeem(ticket)


def tickets(settings: ConnectionsSettings) -> Tickets:
    """Return the tickets, beside the open WebSockets."""
    from lakesync.buffer.connections import ItemTickets  # noqa: PLC0415

    return ItemTickets(wiring.item_store(settings, settings.connections_table))


def sockets(settings: SocketSettings) -> Sockets:
    """Return the WebSockets' other side."""
    from lakesync.runtime.websocket_frames import ApiSockets  # noqa: PLC0415

    return ApiSockets(
        settings.socket_host, settings.socket_stage, settings.region, settings.endpoint
    )


def clients_admin(settings: AdminFunctionSettings) -> ClientsAdmin:
    """Return the service for connected clients; imported when a route first needs it."""
    from lakesync.compat.follower_progress import cursor_of  # noqa: PLC0415
    from lakesync.gateway.connected import ClientsAdmin  # noqa: PLC0415
    from lakesync.gateway.frame_sending import FrameSender  # noqa: PLC0415

    open_connections = connections(settings)
    return ClientsAdmin(
        wiring.store(settings),
        wiring.buffer(settings),
        open_connections,
        FrameSender(
            sockets(settings), open_connections, seconds=time.monotonic, sleep_s=time.sleep
        ),
        cursor_of=cursor_of,
    )


def frame_service(settings: FramesSettings) -> FrameService:
    """Return the service behind ``functions/frames``."""
    from lakesync.runtime.websocket_frames import (  # noqa: PLC0415
        ACTIONS_S,
        FrameService,
        run_actions,
    )

    pulls, _ = wiring.pull_services(settings)
    return FrameService(
        wiring.push_service(settings),
        pulls,
        wiring.quotas(settings),
        wiring.access(settings),
        connections(settings),
        sockets(settings),
        run_actions(wiring.invoker(settings, settings.actions_function, ACTIONS_S)),
    )


def notifier(settings: NotifySettings) -> Handler:
    """Return the service behind ``functions/notify``."""
    from lakesync.gateway.broadcast import Broadcaster  # noqa: PLC0415
    from lakesync.gateway.connected import ConnectionSweep  # noqa: PLC0415
    from lakesync.gateway.frame_sending import FrameSender  # noqa: PLC0415
    from lakesync.gateway.pull import PullService  # noqa: PLC0415
    from lakesync.runtime import observe  # noqa: PLC0415
    from lakesync.runtime.websocket_frames import notify_handler  # noqa: PLC0415

    open_connections = connections(settings)
    access = wiring.access(settings)
    sender = FrameSender(
        sockets(settings),
        open_connections,
        seconds=time.monotonic,
        sleep_s=time.sleep,
        per_s=settings.sent_per_s,
        on_failure=lambda error: observe.failure(error, task="notify"),
    )
    broadcaster = Broadcaster(
        PullService(wiring.buffer(settings), wall_clock=wiring.wall_clock),
        open_connections,
        sender,
        access=access,
        wall_clock=wiring.wall_clock,
    )
    sweep = ConnectionSweep(open_connections, sender, access, wiring.wall_clock)
    return notify_handler(broadcaster, sweep)
