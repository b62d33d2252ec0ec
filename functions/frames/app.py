"""Clients push and pull over WebSockets: ``$default``."""

from lakesync.runtime import wiring, wiring_realtime
from lakesync.runtime.realtime.frames import frames_handler
from lakesync.runtime.settings_realtime import FramesSettings
from lakesync.runtime.sizing import sized

handler = sized(frames_handler(wiring_realtime.frame_service(wiring.load(FramesSettings))))
