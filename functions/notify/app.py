"""Connected clients are notified of what was committed: the buffer's stream, and a sweep."""

from lakesync.runtime import websockets, wiring
from lakesync.runtime.observe import sized
from lakesync.runtime.websockets import NotifySettings

handler = sized(websockets.notifier(wiring.load(NotifySettings)))
