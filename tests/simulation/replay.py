"""Runs one seed, and says what came of it."""

from __future__ import annotations

import functools
import gc
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulation.history import Violation
from tests.simulation.scenario import scenario_of
from tests.simulation.scheduler import Stuck
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections import Counter

    from tests.simulation.scenario import Scenario


GARBAGE: Final = 50_000
"""Objects between two searches for garbage; a seed makes little of it, and Python looks often."""


@dataclass(frozen=True)
class Outcome:
    """What came of one seed."""

    scenario: Scenario
    counts: Counter[str]
    simulated_ms: int
    promise: str = ""
    """The promise that was broken; empty if none was."""
    message: str = ""
    trace: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.promise)


def run_seed(seed: int, *, traced: bool = False) -> Outcome:
    return run_scenario(scenario_of(seed), traced=traced)


@functools.cache
def _settle_down() -> None:
    """Take all that is loaded out of searches for garbage: a tenth of a seed's time went there."""
    gc.collect()
    gc.freeze()


def run_scenario(scenario: Scenario, *, traced: bool = False) -> Outcome:
    """Live through a scenario; whatever is raised is an outcome."""
    trace: list[str] = []
    world = World(scenario, trace if traced else None)
    promise = message = ""
    _settle_down()
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE, *thresholds[1:])
    try:
        world.run()
    except Violation as violation:
        promise, message = violation.promise, str(violation)
    except Stuck as stuck:
        promise, message = "liveness", str(stuck)
    except Exception as error:  # noqa: BLE001 - a bug in what is simulated is a finding too
        promise, message = type(error).__name__, traceback.format_exc()
    finally:
        gc.set_threshold(*thresholds)
    simulated_ms = world.scheduler.elapsed_ms
    return Outcome(scenario, world.counts, simulated_ms, promise, message, trace)


def story(outcome: Outcome, lines: int = 60) -> str:
    """Return what came of a failing seed, and how to see it again."""
    seed = outcome.scenario.seed
    return "\n".join(
        [
            f"seed {seed} broke a promise: {outcome.message}",
            f"see all of it:      python -m tools.simulate --seed {seed}",
            f"make it smaller:    python -m tools.simulate --seed {seed} --shrink",
            "the last that happened:",
            *outcome.trace[-lines:],
        ]
    )
