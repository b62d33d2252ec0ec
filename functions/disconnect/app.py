"""WebSockets are closed: ``$disconnect``."""

from lakesync.runtime import websockets, wiring
from lakesync.runtime.observe import sized
from lakesync.runtime.websockets import ConnectionsSettings, disconnect_handler

handler = sized(disconnect_handler(websockets.connections(wiring.load(ConnectionsSettings))))
