"""The simulation bites: each fault that is put in on purpose is found within the usual seeds."""

from __future__ import annotations

import pytest

from tests.simulation.deliberate import FAULTS, Deliberate, broken
from tests.simulation.search import SEEDS_MAX, seeds_to_find


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_deliberate_fault_is_found(fault: Deliberate) -> None:
    found, _ = seeds_to_find(fault, 0, SEEDS_MAX)
    assert found, f"nobody notices that {fault.message}"


def test_every_fault_replaces_something_that_is_there() -> None:
    for fault in FAULTS:
        with broken(fault):
            pass


def test_there_are_faults_in_every_part() -> None:
    parts = {fault.patches.__module__.rpartition(".")[2] for fault in FAULTS}

    assert parts == {
        "in_access",
        "in_checkpoints",
        "in_client",
        "in_destinations",
        "in_flush",
        "in_gateway",
        "in_merge",
        "in_rules",
        "in_pending_echo",
        "in_sockets",
        "in_upkeep",
    }
    assert len(FAULTS) >= 20
