"""Clients push and pull over WebSockets: ``$default``."""

from lakesync.runtime import websockets, wiring
from lakesync.runtime.observe import sized
from lakesync.runtime.websocket_frames import frames_handler
from lakesync.runtime.websockets import FramesSettings

handler = sized(frames_handler(websockets.frame_service(wiring.load(FramesSettings))))
