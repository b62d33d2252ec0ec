"""WebSockets, as the settings say. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakesync.runtime import wiring, wiring_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.clients import ClientsAdmin
    from lakesync.ports import Connections, Sockets, Tickets
    from lakesync.runtime.auth import TokenClaims
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.realtime.frames import FrameService
    from lakesync.runtime.realtime.tickets import SocketTickets
    from lakesync.runtime.settings_realtime import (
        AdminFunctionSettings,
        ConnectionsSettings,
        FramesSettings,
        NotifySettings,
        SocketSettings,
    )


def connections(settings: ConnectionsSettings) -> Connections:
    """Return the open WebSockets, in a table of their own."""
    from lakesync.buffer.connections import DynamoConnections  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoConnections(settings.connections_table, dynamo(settings))


def socket_tickets(settings: ConnectionsSettings) -> SocketTickets:
    """Return the service that issues and redeems tickets."""
    from lakesync.runtime.realtime.tickets import SocketTickets  # noqa: PLC0415

    return SocketTickets(tickets(settings), wall_clock=wiring.wall_clock)


def redeemer(settings: ConnectionsSettings) -> Callable[[str], TokenClaims]:
    """Return a function that redeems tickets; DynamoDB's caller is imported at the first ticket."""
    return lambda ticket: socket_tickets(settings).redeem(ticket)


def tickets(settings: ConnectionsSettings) -> Tickets:
    """Return the tickets, beside the open WebSockets."""
    from lakesync.buffer.tickets import DynamoTickets  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoTickets(settings.connections_table, dynamo(settings))


def sockets(settings: SocketSettings) -> Sockets:
    """Return the WebSockets' other side."""
    from lakesync.runtime.realtime.management import ApiSockets  # noqa: PLC0415

    return ApiSockets(
        settings.socket_host, settings.socket_stage, settings.region, settings.endpoint
    )


def clients_admin(settings: AdminFunctionSettings) -> ClientsAdmin:
    """Return the service for connected clients; imported when a route first needs it."""
    from lakesync.compat.follower_state import cursor_of  # noqa: PLC0415
    from lakesync.gateway.clients import ClientsAdmin  # noqa: PLC0415
    from lakesync.gateway.delivery import Delivery  # noqa: PLC0415

    open_connections = connections(settings)
    return ClientsAdmin(
        wiring_access.store(settings),
        wiring.buffer(settings),
        open_connections,
        Delivery(sockets(settings), open_connections, seconds=time.monotonic, sleep_s=time.sleep),
        cursor_of=cursor_of,
    )


def frame_service(settings: FramesSettings) -> FrameService:
    """Return the service behind ``functions/frames``."""
    from lakesync.runtime.realtime.act import ACTIONS_S, run_actions  # noqa: PLC0415
    from lakesync.runtime.realtime.frames import FrameService  # noqa: PLC0415

    pulls, _ = wiring.pull_services(settings)
    return FrameService(
        wiring.push_service(settings),
        pulls,
        wiring_access.quotas(settings),
        wiring_access.access(settings),
        connections(settings),
        sockets(settings),
        run_actions(wiring.invoker(settings, settings.actions_function, ACTIONS_S)),
    )


def notifier(settings: NotifySettings) -> Handler:
    """Return the service behind ``functions/notify``."""
    from lakesync.gateway.broadcast import Broadcaster  # noqa: PLC0415
    from lakesync.gateway.delivery import Delivery  # noqa: PLC0415
    from lakesync.gateway.pull import PullService  # noqa: PLC0415
    from lakesync.gateway.sweep import ConnectionSweep  # noqa: PLC0415
    from lakesync.runtime import observe  # noqa: PLC0415
    from lakesync.runtime.realtime.notify import notify_handler  # noqa: PLC0415

    open_connections = connections(settings)
    access = wiring_access.access(settings)
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
