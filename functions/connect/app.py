"""Clients open WebSockets: ``$connect``."""

from lakesync.runtime import wiring, wiring_access, wiring_realtime
from lakesync.runtime.realtime.connect import connect_handler
from lakesync.runtime.settings_realtime import ConnectSettings
from lakesync.runtime.sizing import sized

settings = wiring.load(ConnectSettings)
handler = sized(
    connect_handler(
        wiring_realtime.connections(settings),
        wiring.buffer(settings),
        wiring_access.access(settings),
        wiring.wall_clock,
    )
)
