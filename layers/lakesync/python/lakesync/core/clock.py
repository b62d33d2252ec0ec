"""The hybrid logical clock: stamps that follow wall time and never run backwards.

Rules of this module
    1. A stamp is 64 bits: 48 of wall-clock milliseconds, then 16 of counter. Comparing two
       stamps as integers compares them as times.
    2. Wall time is passed in. Nothing here reads a clock, so everything here can be replayed.
    3. ``last`` never falls. ``now`` always raises it; ``observe`` raises it or refuses.

Theory: Kulkarni et al., "Logical Physical Clocks" (OPODIS 2014), with the logical part in the low
bits so that a full counter carries into the milliseconds by ordinary addition.
Laws C1-C5: ``docs/spec/clock.md``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from lakesync.errors import ClockDrift

Stamp: TypeAlias = int
"""A hybrid logical time; 0 means "never"."""

COUNTER_BITS: Final = 16
COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1
"""The last stamp of a millisecond; the next one carries into the milliseconds."""
STAMP_MAX: Final = (1 << 63) - 1
"""The greatest stamp: the year 6429. One bit is left free, for stores with signed integers."""
DRIFT_MS_MAX: Final = 5_000
"""How far ahead of the observer's wall clock a stamp may lie: more than clocks that are kept in
time ever differ, and too little for one wrong clock to decide every conflict."""

VISIBLE_MS_MAX: Final = 60_000
"""How long a commit may take from its stamp to being visible in all its parts, by any function's
clock. A writer gives a commit up after half of it, and no function that pushes runs as long."""


def stamp(wall_ms: int, counter: int = 0) -> Stamp:
    """Pack milliseconds since 1970 and a counter into a stamp."""
    return (wall_ms << COUNTER_BITS) | counter


def stamp_ms(value: Stamp) -> int:
    """Give the milliseconds since 1970 of a stamp."""
    return value >> COUNTER_BITS


def check_drift(value: Stamp, wall_ms: int, drift_ms_max: int = DRIFT_MS_MAX) -> None:
    """Refuse a stamp from too far in the future; the past is fine, however old.

    Raises:
        ClockDrift: the stamp lies more than ``drift_ms_max`` ahead of ``wall_ms``.
    """
    ahead_ms = stamp_ms(value) - wall_ms
    if ahead_ms > drift_ms_max:
        raise ClockDrift(
            f"the stamp {value} is {ahead_ms} ms ahead of this clock; at most {drift_ms_max} ms is "
            "accepted: correct the device's clock and stamp the change again"
        )


class HybridLogicalClock:
    """One process's clock. ``last`` is all of its state: keep it, and a restart loses nothing."""

    __slots__ = ("drift_ms_max", "last")

    def __init__(self, last: Stamp = 0, *, drift_ms_max: int = DRIFT_MS_MAX) -> None:
        self.last = last
        self.drift_ms_max = drift_ms_max

    def now(self, wall_ms: int) -> Stamp:
        """Issue a stamp greater than every stamp issued or observed before."""
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    def observe(self, remote: Stamp, wall_ms: int) -> None:
        """Move past a stamp that came from elsewhere; safe to repeat.

        Raises:
            ClockDrift: the stamp is too far ahead; the clock stays as it was.
        """
        check_drift(remote, wall_ms, self.drift_ms_max)
        self.last = max(self.last, remote)
