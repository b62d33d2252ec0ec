"""One figure of the table, and how it is measured fairly on a machine that others use too."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Entry = dict[str, Any]
"""``name``, ``value``, ``unit``, ``target``, ``holds``, ``detail``."""
QUICK: Final = "LAKESYNC_BENCHMARKS_QUICK"
"""Set for a process that is to show that a module runs; what it gives is no figure."""


def sized(full: T, quick: T) -> T:
    """Return how much is measured: next to nothing where only running counts."""
    return quick if is_quick() else full


def is_quick() -> bool:
    """Return whether only running counts."""
    return bool(os.environ.get(QUICK))


def at_most(name: str, value: float, unit: str, target: float, detail: str) -> Entry:
    """Return a figure that holds while it is at most the target."""
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "target": target,
        "holds": value <= target,
        "detail": detail,
    }


def at_least(name: str, value: float, unit: str, target: float, detail: str) -> Entry:
    """Return a figure that holds while it is at least the target."""
    return at_most(name, value, unit, target, detail) | {"holds": value >= target}


def cpu_us(work: Callable[[int], int], rounds: int = 5) -> float:
    """Return the process's CPU time for one of what ``work`` counts, the best of some rounds.

    ``work`` is told the round's number. The best round is the one that others on the machine
    disturbed least.
    """
    best = float("inf")
    for number in range(rounds):
        gc.collect()
        start = time.process_time()
        count = work(number)
        best = min(best, (time.process_time() - start) / count)
    return best * 1e6
