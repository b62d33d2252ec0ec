"""Time: stamps that follow wall time and never run backwards, and turns within an interval.

Rules of the clock
    1. A stamp has 64 bits: 48 of wall-clock milliseconds, then 16 of counter. Comparing two stamps
       as integers compares them as times.
    2. Wall time is an argument. Nothing here reads a clock, so everything here can be replayed.
    3. ``last`` never falls. ``now`` always raises it; ``observe`` raises it or refuses.

Theory: Kulkarni et al., "Logical Physical Clocks" (OPODIS 2014), with the logical part in the low
bits so that a full counter carries into the milliseconds by ordinary addition.
Laws C1-C5: ``docs/spec/clock.md``.

What happens to each of a thousand gateways every quarter of an hour happens to about one a second,
and to each of them always at the same place of the interval, so an interval apart: the place is a
hash of its name.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar
from zlib import crc32

from lakesync.errors import ClockDrift

Stamp: TypeAlias = int
"""A hybrid logical time; 0 means "never"."""

COUNTER_BITS: Final = 16
COUNTER_MAX: Final = (1 << COUNTER_BITS) - 1
"""The last counter value of a millisecond; the next stamp carries into the milliseconds."""
STAMP_MAX: Final = (1 << 63) - 1
"""The greatest stamp: the year 6429. One bit is left free, for stores with signed integers."""
DRIFT_MS_MAX: Final = 5_000
"""How far a stamp may be ahead of the observer's wall clock. Synchronised clocks never differ by
more, and it is too little for one wrong clock to win every conflict."""

VISIBLE_MS_MAX: Final = 60_000
"""How long a commit may take from its stamp until all its parts are visible, by any function's
clock. A writer abandons a commit after half of this time, and no function that pushes runs as long.
"""


def stamp(wall_ms: int, counter: int = 0) -> Stamp:
    """Pack milliseconds since 1970 and a counter into a stamp."""
    return (wall_ms << COUNTER_BITS) | counter


def stamp_ms(value: Stamp) -> int:
    """Return the milliseconds since 1970 of a stamp."""
    return value >> COUNTER_BITS


def check_drift(value: Stamp, wall_ms: int, drift_ms_max: int = DRIFT_MS_MAX) -> None:
    """Refuse a stamp that is too far in the future; a stamp in the past is accepted, however old.

    Raises:
        ClockDrift: the stamp is more than ``drift_ms_max`` ahead of ``wall_ms``.
    """
    ahead_ms = stamp_ms(value) - wall_ms
    if ahead_ms > drift_ms_max:
        raise ClockDrift(
            f"the stamp {value} is {ahead_ms} ms ahead of this clock; at most {drift_ms_max} ms is "
            "accepted: correct the device's clock and stamp the change again"
        )


class HybridLogicalClock:
    """One process's clock. ``last`` is its whole state: store it, and a restart loses nothing."""

    __slots__ = ("drift_ms_max", "last")

    def __init__(self, last: Stamp = 0, *, drift_ms_max: int = DRIFT_MS_MAX) -> None:
        self.last = last
        self.drift_ms_max = drift_ms_max

    def now(self, wall_ms: int) -> Stamp:
        """Issue a stamp greater than every stamp issued or observed before."""
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    def observe(self, remote: Stamp, wall_ms: int) -> None:
        """Advance past a stamp from another clock; idempotent.

        Raises:
            ClockDrift: the stamp is too far ahead; the clock is unchanged.
        """
        check_drift(remote, wall_ms, self.drift_ms_max)
        self.last = max(self.last, remote)


# --- turns within an interval ---------------------------------------------------------------------


def place_in(interval: int, name: str) -> int:
    """Return the place of a name in an interval of so many units, from 0 on."""
    return crc32(name.encode()) % interval


def next_turn(interval: int, name: str, now: int) -> int:
    """Return the first time from now on that is a name's place in an interval."""
    return now + (place_in(interval, name) - now) % interval


# --- waits that double ----------------------------------------------------------------------------


Time = TypeVar("Time", int, float)

_DOUBLINGS_MAX: Final = 16


def doubled(first: Time, most: Time, failures: int) -> Time:
    """Return ``first``, doubled once for each failure, and at most ``most``, in the same unit.

    It is the bound that callers draw their wait from, by chance, so that they spread out.
    """
    return min(most, first * (1 << min(failures, _DOUBLINGS_MAX)))
