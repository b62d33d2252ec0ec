"""Scenarios that broke a promise once, each with what it was.

Each is kept whole, since what a seed stands for changes with the simulation; and each is held to
the deliberate fault that is what was wrong then, so that none becomes a scenario of nothing. What
is drawn while a scenario runs changes with the code it runs, so the fault may need a few draws.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.deliberate import FAULTS
from tests.simulation.replay import run_scenario, story
from tests.simulation.search import KEPT, draw_that_shows, kept_scenario, known_seeds
from tests.support.node import needs_node

each = pytest.mark.parametrize(
    "kept",
    [
        pytest.param(
            kept, id=kept["fault"], marks=[needs_node] if kept_scenario(kept).javascript else []
        )
        for kept in KEPT
    ],
)


@each
def test_scenario_that_once_broke_a_promise_breaks_none(kept: dict[str, Any]) -> None:
    outcome = run_scenario(kept_scenario(kept), traced=True)
    if outcome.failed:
        pytest.fail(f"{kept['message']}\n{story(outcome)}", pytrace=False)


@each
def test_deliberate_fault_of_a_kept_scenario_is_found(kept: dict[str, Any]) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == kept["fault"]]
    known = known_seeds()["kept"].get(fault.name)

    assert draw_that_shows(fault, kept_scenario(kept), known) is not None
