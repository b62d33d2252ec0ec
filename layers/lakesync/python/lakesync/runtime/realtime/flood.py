"""Detects a connection that sends frames without pause, whichever processes receive them.

Each process counts the frames that it receives, and adds the count to the connection's item, ten
frames at a time: the item is read for each frame in any case, so every process sees the sum. The
cost is one write unit for each ten frames of a busy connection, a sixteenth of API Gateway's price
for them; nothing for a connection that sends less than ten frames in ten seconds to a process. Law
T7: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lakesync.errors import RateLimited, Unavailable

if TYPE_CHECKING:
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Connection, Connections

WINDOW_S: Final = 10
"""Frames are counted in spans of so many seconds, the same in all processes."""
WINDOW_FRAMES_MAX: Final = 1_000
"""Frames of one connection in ten seconds, in all processes: more are a flood, which closes it."""
COUNTED_AT_ONCE: Final = 10
"""Frames of one connection that a process takes before it adds them to those of all processes."""
CONNECTIONS_COUNTED_MAX: Final = 1_000
"""Connections whose frames one process counts."""


class FloodGate:
    """Counts frames. One for each process; one call at a time.

    Args:
        connections: where the frames of all processes are summed.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._taken: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """For each connection a window, and the frames received in it that are not summed yet."""

    def check(self, connection: Connection, now_s: float) -> LakeSyncError | None:
        """Count a frame; returns why the connection is closed if its frames are a flood.

        Args:
            connection: as it was read for this frame.
            now_s: the time.
        """
        window = int(now_s) // WINDOW_S
        began, taken = self._taken.pop(connection.id, (window, 0))
        taken = taken + 1 if began == window else 1
        summed = connection.frames if connection.window == window else 0
        if summed + taken > WINDOW_FRAMES_MAX:
            most = WINDOW_FRAMES_MAX // WINDOW_S
            return RateLimited(f"at most {most} frames a second; connect again, and pause")
        if taken >= COUNTED_AT_ONCE and self._added(connection, window, taken):
            taken = 0
        self._taken[connection.id] = (window, taken)
        while len(self._taken) > CONNECTIONS_COUNTED_MAX:
            self._taken.popitem(last=False)
        return None

    def _added(self, connection: Connection, window: int, taken: int) -> bool:
        """Add to the sum; what cannot be added now is added with the next frame."""
        try:
            return self._connections.count_frames(connection, window, taken)
        except Unavailable:
            return False
