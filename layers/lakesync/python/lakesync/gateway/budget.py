"""The limit on what one request reads: a number of reads, and a time. The next one continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakesync.ports import WallClock

READS_MAX: Final = 16
"""Reads of the log, of rows or of a checkpoint, of about 1 MB each, that one request makes to find
visible changes."""
READ_MS_MAX: Final = 10_000
"""How long one request keeps reading: its answer comes well within its function's 29 s."""


class Budget:
    """Counts the reads of one request."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._deadline_ms = wall_clock() + READ_MS_MAX
        self._reads = 0

    def allows_read(self) -> bool:
        """Count another read; True if it may be made. The first one is always allowed."""
        self._reads += 1
        in_time = self._reads <= READS_MAX and self._wall_clock() < self._deadline_ms
        return in_time or self._reads == 1
