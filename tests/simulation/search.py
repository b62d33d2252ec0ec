"""Searches for a deliberate fault: how many seeds until a promise is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.deliberate import broken
from tests.simulation.replay import run_scenario
from tests.simulation.scenario import changed, scenario_of

if TYPE_CHECKING:
    from tests.simulation.deliberate import Deliberate

SEEDS_MAX: Final = 500
"""Within so many seeds each deliberate fault is to be found."""


def seeds_to_find(fault: Deliberate, first: int, seeds_max: int) -> tuple[int, str]:
    """Give how many seeds a deliberate fault takes to be found, 0 if it is not, and by what."""
    with broken(fault):
        for seed in range(first, first + seeds_max):
            outcome = run_scenario(changed(scenario_of(seed), fault.theme))
            if outcome.failed:
                return seed - first + 1, outcome.promise
    return 0, ""
