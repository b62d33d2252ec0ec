"""Clients open WebSockets: ``$connect``."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.observe import sized
from lakesync.runtime.websocket_handshake import connect_handler
from lakesync.runtime.wiring_realtime import ConnectSettings

settings = wiring.load(ConnectSettings)
handler = sized(
    connect_handler(
        wiring_realtime.connections(settings),
        wiring.buffer(settings),
        wiring.access(settings),
        wiring.wall_clock,
    )
)
