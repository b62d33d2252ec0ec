"""Clients push and pull over WebSockets: ``$default``."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.observe import sized
from lakesync.runtime.websocket_frames import frames_handler
from lakesync.runtime.wiring_realtime import FramesSettings

handler = sized(frames_handler(wiring_realtime.frame_service(wiring.load(FramesSettings))))
