"""Where in an interval the turn of one of many is: spread by a hash of its name. Pure.

What happens to each of a thousand gateways every quarter of an hour happens to about one a second,
and to each of them always at the same place of the interval, so an interval apart.
"""

from __future__ import annotations

from zlib import crc32


def place_in(interval: int, name: str) -> int:
    """Return the place of a name in an interval of so many units, from 0 on."""
    return crc32(name.encode()) % interval


def next_turn(interval: int, name: str, now: int) -> int:
    """Return the first time from now on that is a name's place in an interval."""
    return now + (place_in(interval, name) - now) % interval
