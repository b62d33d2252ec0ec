"""Connected clients are notified of what was committed: the buffer's stream, and a sweep."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.settings_realtime import NotifySettings
from lakesync.runtime.sizing import sized

handler = sized(wiring_realtime.notifier(wiring.load(NotifySettings)))
