"""Polled flows, of which few seeds have any: some more of each of their themes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.replay import run_scenario, story
from tests.simulation.scenario import changed, scenario_of
from tests.simulation.themes import FLOWS, LARGE_FLOWS, SLOW_FLOWS

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEDS = range(1_000, 1_013)
"""As many as it takes until all of the below has happened."""
EXERCISED = {
    "a source forgot its history",
    "a source was filled anew",
    "a source was restored from a backup",
    "a source's table grew",
    "backfill",
    "since",
    "pause",
    "wait",
}


@pytest.mark.law("N2", "N4", "N7", "Y1", "Y2", "Y3", "Y5", "Y8", "Y9", "Y11")
@pytest.mark.parametrize(
    ("theme", "exercised"),
    [
        (FLOWS, EXERCISED),
        (LARGE_FLOWS, {"large", "a job brought something", "a job died"}),
        (SLOW_FLOWS, {"busy", "an execution failed: Lambda.Unknown", "run"}),
    ],
    ids=["flows", "large", "slow"],
)
def test_flows_deliver_everything_once_whatever_goes_wrong(
    theme: Mapping[str, Any], exercised: set[str]
) -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        scenario = changed(scenario_of(seed), theme)
        outcome = run_scenario(scenario)
        counts += outcome.counts
        if outcome.failed:
            pytest.fail(story(run_scenario(scenario, traced=True)), pytrace=False)

    assert {what for what in exercised if not counts[f"flows: {what}"]} == set()
