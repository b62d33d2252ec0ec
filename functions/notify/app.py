"""Connected clients are notified of what was committed: the buffer's stream, and a sweep."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.observe import sized
from lakesync.runtime.wiring_realtime import NotifySettings

handler = sized(wiring_realtime.notifier(wiring.load(NotifySettings)))
