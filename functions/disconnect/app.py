"""WebSockets are closed: ``$disconnect``."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.observe import sized
from lakesync.runtime.websocket_handshake import disconnect_handler
from lakesync.runtime.wiring_realtime import ConnectionsSettings

handler = sized(disconnect_handler(wiring_realtime.connections(wiring.load(ConnectionsSettings))))
