"""Seeds: clients, network, functions, flush and lake go wrong in every order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.deliberate import FAULTS, broken
from tests.simulation.promises import PROMISES
from tests.simulation.replay import Outcome, run_scenario, run_seed, story
from tests.simulation.scenario import Faults
from tests.simulation.shrink import shrunk
from tests.support.pages import marks_in
from tests.support.repository import ROOT, modules
from tests.support.waiting import waited

SEEDS = 20
"""A few, to show that seeds run; `make simulate` searches."""


@pytest.mark.law(
    "A1", "A3", "A4",
    "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12", "B15", "B16", "B17",
    "B19",
    "D1", "D2", "D3", "D4", "D7", "D8", "D10", "D11",
    "E1", "E2", "E3",
    "K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "K10", "K11", "K12", "K13", "K14", "K15",
    "K27", "K29", "K33", "K34", "K36", "K37",
    "M3", "M4", "M5", "M6", "M7", "M8", "M10",
    "N2", "N4", "N7",
    "S7",
    "T1", "T2", "T3", "T4", "T6",
    "U1", "U2", "U3", "U4",
    "V1", "V2", "V4", "V5", "V6", "V7", "V8", "V9", "V11", "V12",
    "W3",
    "Y1", "Y2", "Y3", "Y5", "Y8", "Y9", "Y11",
)  # fmt: skip
def test_every_promise_holds_whatever_goes_wrong() -> None:
    """In two worker processes, which are summed up."""
    ran = subprocess.run(
        [sys.executable, "-m", "tools.simulate", "--seeds", str(SEEDS), "--processes", "2"],
        cwd=ROOT, capture_output=True, check=False, text=True, timeout=300,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^ +[\d,]+  commit$", ran.stdout, re.MULTILINE)
    assert re.search(rf"^{SEEDS} seeds in \d+ s", ran.stdout, re.MULTILINE)
    assert "0 broke a promise" in ran.stdout


def test_each_checked_promise_stands_for_laws() -> None:
    """The marks above are exactly the laws of `PROMISES`, and nothing else is checked."""
    (own,) = modules("tests/simulation/test_seeds.py")
    marked = {law for _, laws in marks_in(own) for law in laws}
    checked = {
        promise
        for module in modules("tests/simulation/")
        for promise in re.findall(r'Violation\(\s*"([^"]+)"', module.text)
    }

    assert checked == set(PROMISES)
    assert marked == {law for laws in PROMISES.values() for law in laws}


def test_testing_page_names_each_promise_with_its_laws() -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")

    missing = [
        promise for promise, laws in PROMISES.items()
        if f"| {promise} | {', '.join(laws)} |" not in page
    ]  # fmt: skip
    assert missing == []


def test_run_does_not_depend_on_hash_randomisation() -> None:
    """Two processes, two orders of every set of text: the same lines."""
    lived = [
        subprocess.run(
            [sys.executable, "-m", "tools.simulate", "--seed", "7"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip

    assert lived[0] == lived[1]


def test_workers_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "tools.simulate", "--seeds", "100000", "--processes", "2"],
        cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert waited(lambda: len(children_of(parent.pid)) >= 2)
        workers = children_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and not yet buried."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()]


def test_failing_seed_reports_how_to_repeat_it_and_is_shrunk() -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "merge_by_row_stamp"]
    with broken(fault):
        outcome = run_seed(3, traced=True)
        smaller = shrunk(outcome.scenario, outcome.promise, lambda _: None)
        again = run_scenario(smaller)

    assert "python -m tools.simulate --seed 3" in story(outcome)
    assert again.promise == outcome.promise
    assert smaller.clients <= 2
    assert smaller.faults == Faults()


def test_same_seed_gives_the_same_run() -> None:
    """Every line of its trace, and all that was counted."""

    def lived(seed: int) -> tuple[list[str], dict[str, int]]:
        outcome: Outcome = run_seed(seed, traced=True)
        return outcome.trace, dict(outcome.counts)

    assert [lived(seed) for seed in range(3)] == [lived(seed) for seed in range(3)]
