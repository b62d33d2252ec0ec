"""Connected clients are notified of what was committed: the buffer's stream, and a sweep."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.realtime.notify import notify_handler
from lakesync.runtime.settings_realtime import NotifySettings

handler = notify_handler(wiring_realtime.broadcaster(wiring.load(NotifySettings)))
