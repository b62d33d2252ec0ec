"""The simulation bites: each fault that is put in on purpose is found within the usual seeds."""

from __future__ import annotations

import pytest

from tests.simulation.deliberate import FAULTS, Deliberate, broken
from tests.simulation.replay import run_scenario
from tests.simulation.scenario import changed, scenario_of

SEEDS_MAX = 500


def seeds_to_find(fault: Deliberate, first: int = 0) -> int:
    """Give how many seeds it takes until a promise is broken; 0 if none is."""
    with broken(fault):
        for seed in range(first, first + SEEDS_MAX):
            if run_scenario(changed(scenario_of(seed), fault.theme)).failed:
                return seed - first + 1
    return 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_deliberate_fault_is_found(fault: Deliberate) -> None:
    assert seeds_to_find(fault), f"nobody notices that {fault.told}"


def test_there_are_faults_in_every_part() -> None:
    parts = {fault.patches.__module__.rpartition(".")[2] for fault in FAULTS}

    assert parts == {
        "in_checkpoints",
        "in_client",
        "in_flush",
        "in_gateway",
        "in_merge",
        "in_rules",
        "in_upkeep",
    }
    assert len(FAULTS) >= 20
