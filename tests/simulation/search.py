"""Searches for a deliberate fault: how many seeds until a promise is broken.

A seed that showed a fault is remembered, in ``known_seeds.json``, and looked at first. Where it no
longer does, as the code or the simulation has changed, the search begins at the beginning.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.deliberate import broken
from tests.simulation.node import NodeError
from tests.simulation.replay import run_scenario
from tests.simulation.scenario import changed, scenario_from_json, scenario_of
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from tests.simulation.deliberate import Deliberate
    from tests.simulation.replay import Outcome
    from tests.simulation.scenario import Scenario

SEEDS_MAX: Final = 500
"""Within so many seeds each deliberate fault is to be found."""
DRAWS_MAX: Final = 400
"""Seeds that are tried with a kept scenario until its fault shows; about 30 are enough."""
KNOWN_PATH: Final = ROOT / "tests" / "simulation" / "known_seeds.json"
KEPT: Final[list[dict[str, Any]]] = json.loads(
    (ROOT / "tests" / "simulation" / "regressions.json").read_text("utf-8")
)
"""Scenarios that broke a promise once, each with what it was."""


def seeds_to_find(fault: Deliberate, first: int, seeds_max: int) -> tuple[int, str]:
    """Return how many seeds a deliberate fault takes to be found, 0 if it is not, and by what."""
    with broken(fault):
        for seed in range(first, first + seeds_max):
            outcome = run_scenario(changed(scenario_of(seed), fault.theme))
            if _shows(outcome):
                return seed - first + 1, outcome.promise
    return 0, ""


def seed_that_shows(fault: Deliberate, known: int | None) -> int | None:
    """Return a usual seed that shows a deliberate fault, the known one if it still does."""
    return _first(fault, known, SEEDS_MAX, lambda seed: changed(scenario_of(seed), fault.theme))


def draw_that_shows(fault: Deliberate, kept: Scenario, known: int | None) -> int | None:
    """Return a draw of a kept scenario that shows a fault, the known one if it still does."""
    return _first(fault, known, DRAWS_MAX, lambda number: replace(kept, seed=kept.seed + number))


def _first(
    fault: Deliberate, known: int | None, numbers_max: int, made: Callable[[int], Scenario]
) -> int | None:
    numbers: Iterable[int] = range(numbers_max)
    if known is not None:
        numbers = (known, *numbers)
    with broken(fault):
        return next((n for n in numbers if _shows(run_scenario(made(n)))), None)


def _shows(outcome: Outcome) -> bool:
    """Return whether a promise was broken, and not merely the fault's own code called wrongly."""
    return outcome.failed and outcome.promise not in {TypeError.__name__, NodeError.__name__}


def kept_scenario(kept: dict[str, Any]) -> Scenario:
    return scenario_from_json(kept["scenario"])


def known_seeds() -> dict[str, dict[str, int]]:
    """Return the seeds that showed each fault: of usual scenarios, and of kept ones."""
    seeds: dict[str, dict[str, int]] = json.loads(KNOWN_PATH.read_text("utf-8"))
    return seeds


def remember(known: dict[str, dict[str, int]]) -> None:
    """Write the seeds that show each fault."""
    KNOWN_PATH.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
