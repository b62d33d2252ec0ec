"""Connected clients are notified of what was committed: the buffer's stream, and a sweep."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.settings_realtime import NotifySettings

handler = wiring_realtime.notifier(wiring.load(NotifySettings))
