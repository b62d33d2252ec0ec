"""What one request may read: so many reads, for so long. What is left is for the next request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakesync.ports import WallClock

READS_MAX: Final = 16
"""Reads of the log, of rows or of a checkpoint, of about 1 MB each, in which one request looks for
what its client may see."""
READ_MS_MAX: Final = 10_000
"""How long one request goes on reading: it is answered well inside the 29 s of its function."""


class Budget:
    """Counts the reads of one request."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._deadline_ms = wall_clock() + READ_MS_MAX
        self._reads = 0

    def allows_read(self) -> bool:
        """Count another read; True if it may be made. The first one always may."""
        self._reads += 1
        in_time = self._reads <= READS_MAX and self._wall_clock() < self._deadline_ms
        return in_time or self._reads == 1
