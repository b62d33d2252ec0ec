"""The simulation bites: each fault that is put in on purpose is found within the usual seeds."""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

from tests.simulation import deliberate
from tests.simulation.deliberate import FAULTS, Deliberate, broken
from tests.simulation.search import DRAWS_MAX, KEPT, SEEDS_MAX, known_seeds, seed_that_shows
from tests.support.node import needs_node
from tests.support.some import some


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[needs_node] if fault.is_in_node else [])
        for fault in FAULTS
    ],
)
def test_every_deliberate_fault_is_found_within_the_usual_seeds(fault: Deliberate) -> None:
    known = known_seeds()["usual"].get(fault.name)

    shown = seed_that_shows(fault, known)

    assert shown is not None, f"nobody notices that {fault.message}"


def test_known_seeds_belong_to_existing_faults_and_are_within_limits() -> None:
    names = {"usual": {fault.name for fault in FAULTS}, "kept": {kept["fault"] for kept in KEPT}}
    limits = {"usual": SEEDS_MAX, "kept": DRAWS_MAX}

    for kind, seeds in some(known_seeds().items()):
        assert seeds.keys() <= names[kind]
        assert all(0 <= seed < limits[kind] for seed in seeds.values())


def test_every_deliberate_fault_replaces_existing_code() -> None:
    for fault in FAULTS:
        with broken(fault):
            pass


def test_every_part_has_deliberate_faults() -> None:
    parts = {fault.patches.__module__.rpartition(".")[2] for fault in FAULTS}

    assert parts == {module.name for module in iter_modules(deliberate.__path__)} - {"registry"}
    assert len(parts) >= 17
