"""WebSockets are closed: ``$disconnect``."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.realtime.connect import disconnect_handler
from lakesync.runtime.settings_realtime import ConnectionsSettings
from lakesync.runtime.sizing import sized

handler = sized(disconnect_handler(wiring_realtime.connections(wiring.load(ConnectionsSettings))))
