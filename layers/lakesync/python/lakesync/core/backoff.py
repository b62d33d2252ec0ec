"""Waits that double with each failure: the one formula of all retries."""

from __future__ import annotations

from typing import Final, TypeVar

Time = TypeVar("Time", int, float)

_DOUBLINGS_MAX: Final = 16


def doubled(first: Time, most: Time, failures: int) -> Time:
    """Return ``first``, doubled once for each failure, and at most ``most``, in the same unit.

    It is the bound that callers draw their wait from, by chance, so that they spread out.
    """
    return min(most, first * (1 << min(failures, _DOUBLINGS_MAX)))
