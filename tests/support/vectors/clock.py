"""Vectors of the clock: what it issues and observes, by a wall clock that jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import COUNTER_MAX, DRIFT_MS_MAX, HybridLogicalClock, stamp
from lakesync.errors import ClockDrift
from tests.support.vectors.case import WALL_MS, Chance, Subject, case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vectors.case import Case

CASES: Final = 200
JUMPS_MS: Final = (
    0,
    0,
    0,
    1,
    7,
    -1,
    -86_400_000,
    60_000,
    DRIFT_MS_MAX,
    -DRIFT_MS_MAX,
    4_294_967_296,
)
AHEAD_MS: Final = (0, 1, DRIFT_MS_MAX - 1, DRIFT_MS_MAX, DRIFT_MS_MAX + 1, -1, -86_400_000, 60_000)


def _cases() -> Iterator[Case]:
    for number in range(CASES):
        chance = Chance(f"clock {number}")
        wall_ms = WALL_MS
        last = stamp(wall_ms + chance.one_of((-5, 0, 0, 9)), chance.one_of((0, 1, COUNTER_MAX)))
        clock = HybridLogicalClock(last)
        steps, results = [], []
        for _ in range(2 + chance.below(8)):
            wall_ms = max(wall_ms + chance.one_of(JUMPS_MS), 1)
            if chance.is_lucky(3):
                remote = stamp(
                    max(wall_ms + chance.one_of(AHEAD_MS), 0), chance.one_of((0, 3, COUNTER_MAX))
                )
                steps.append({"do": "observe", "hlc": str(remote), "wallMs": wall_ms})
                try:
                    clock.observe(remote, wall_ms)
                except ClockDrift as error:
                    results.append({"error": error.code})
                else:
                    results.append({"last": str(clock.last)})
            else:
                steps.append({"do": "now", "wallMs": wall_ms})
                results.append({"hlc": str(clock.now(wall_ms))})
        given = {"last": str(last), "driftMsMax": DRIFT_MS_MAX, "steps": steps}
        yield case("C1 C2 C3 C4 C5", given, {"steps": results, "last": str(clock.last)})


SUBJECT: Final = Subject(
    "A hybrid logical clock: a stamp is 48 bits of wall-clock milliseconds, then 16 of counter.",
    {
        "last": "the clock's state: the last stamp that it issued or observed",
        "driftMsMax": "how far ahead of the wall clock a stamp may be that it observes",
        "steps": "in order: `now` issues a stamp; `observe` takes another clock's",
    },
    {"steps": "for each step the stamp, the state, or the error's code", "last": "the state after"},
    _cases,
)
