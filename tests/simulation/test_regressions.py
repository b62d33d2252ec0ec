"""Scenarios that broke a promise once, each with what it was.

Each is kept whole, since what a seed stands for changes with the simulation; and each is held to
the deliberate fault that is what was wrong then, so that none becomes a scenario of nothing. What
is drawn while a scenario runs changes with the code it runs, so the fault may need a few draws.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.deliberate import FAULTS, broken
from tests.simulation.replay import run_scenario, story
from tests.simulation.scenario import scenario_from_json
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

KEPT: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "simulation" / "regressions.json").read_text("utf-8")
)
each = pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept["fault"])
DRAWS_MAX = 400
"""Seeds that are tried with a kept scenario until its fault shows; about 30 are enough."""


def scenario(kept: dict[str, Any]) -> Scenario:
    return scenario_from_json(kept["scenario"])


@each
def test_what_was_wrong_once_stays_right(kept: dict[str, Any]) -> None:
    outcome = run_scenario(scenario(kept), traced=True)
    if outcome.failed:
        pytest.fail(f"{kept['message']}\n{story(outcome)}", pytrace=False)


@each
def test_it_would_be_noticed_again(kept: dict[str, Any]) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == kept["fault"]]
    first = scenario(kept)
    with broken(fault):
        draws = (replace(first, seed=first.seed + number) for number in range(DRAWS_MAX))
        assert any(run_scenario(draw).failed for draw in draws)
