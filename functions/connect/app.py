"""Clients open WebSockets: ``$connect``."""

from lakesync.runtime import websockets, wiring
from lakesync.runtime.observe import sized
from lakesync.runtime.websockets import ConnectSettings, connect_handler

settings = wiring.load(ConnectSettings)
handler = sized(
    connect_handler(
        websockets.connections(settings),
        wiring.buffer(settings),
        wiring.access(settings),
        wiring.wall_clock,
    )
)
