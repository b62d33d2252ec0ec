"""WebSockets, as the settings say: the settings of their functions, and what is built from them.

Part of `lakesync.runtime.settings` and `lakesync.runtime.wiring`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.gateway.frame_delivery import SENT_PER_S_MAX
from lakesync.runtime import wiring
from lakesync.runtime.settings import (
    AdminSettings,
    AuthoriseSettings,
    Aws,
    BufferSettings,
    PullAndSourceSettings,
    PullSettings,
    PushSettings,
    not_empty,
    positive,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.connected import ClientsAdmin
    from lakesync.ports import Connections, Sockets, Tickets
    from lakesync.runtime.auth import TokenClaims
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.websocket_frames import FrameService
    from lakesync.runtime.websocket_handshake import SocketTickets

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
class PullFunctionSettings(PullAndSourceSettings, ConnectionsSettings):
    """What ``functions/pull`` needs: also where tickets are."""


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
    from lakesync.buffer.connections import DynamoConnections  # noqa: PLC0415
    from lakesync.runtime.wiring import dynamo  # noqa: PLC0415

    return DynamoConnections(settings.connections_table, dynamo(settings))


def socket_tickets(settings: ConnectionsSettings) -> SocketTickets:
    """Return the service that issues and redeems tickets."""
    from lakesync.runtime.websocket_handshake import SocketTickets  # noqa: PLC0415

    return SocketTickets(tickets(settings), wall_clock=wiring.wall_clock)


def redeemer(settings: ConnectionsSettings) -> Callable[[str], TokenClaims]:
    """Return a function that redeems tickets; DynamoDB's caller is imported at the first ticket."""
    return lambda ticket: socket_tickets(settings).redeem(ticket)


def tickets(settings: ConnectionsSettings) -> Tickets:
    """Return the tickets, beside the open WebSockets."""
    from lakesync.buffer.admission import DynamoTickets  # noqa: PLC0415
    from lakesync.runtime.wiring import dynamo  # noqa: PLC0415

    return DynamoTickets(settings.connections_table, dynamo(settings))


def sockets(settings: SocketSettings) -> Sockets:
    """Return the WebSockets' other side."""
    from lakesync.runtime.websocket_notify import ApiSockets  # noqa: PLC0415

    return ApiSockets(
        settings.socket_host, settings.socket_stage, settings.region, settings.endpoint
    )


def clients_admin(settings: AdminFunctionSettings) -> ClientsAdmin:
    """Return the service for connected clients; imported when a route first needs it."""
    from lakesync.compat.follower_progress import cursor_of  # noqa: PLC0415
    from lakesync.gateway.connected import ClientsAdmin  # noqa: PLC0415
    from lakesync.gateway.frame_delivery import Delivery  # noqa: PLC0415

    open_connections = connections(settings)
    return ClientsAdmin(
        wiring.store(settings),
        wiring.buffer(settings),
        open_connections,
        Delivery(sockets(settings), open_connections, seconds=time.monotonic, sleep_s=time.sleep),
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
    from lakesync.gateway.frame_delivery import Delivery  # noqa: PLC0415
    from lakesync.gateway.pull import PullService  # noqa: PLC0415
    from lakesync.runtime import observe  # noqa: PLC0415
    from lakesync.runtime.websocket_notify import notify_handler  # noqa: PLC0415

    open_connections = connections(settings)
    access = wiring.access(settings)
    delivery = Delivery(
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
        delivery,
        access=access,
        wall_clock=wiring.wall_clock,
    )
    sweep = ConnectionSweep(open_connections, delivery, access, wiring.wall_clock)
    return notify_handler(broadcaster, sweep)
