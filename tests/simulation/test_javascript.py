"""The JavaScript client in the simulation: every second client of a seed, in Node.js."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation import node
from tests.simulation.deliberate import FAULTS, Deliberate, broken
from tests.simulation.deliberate.in_javascript import BY_TRACES
from tests.simulation.node import NodeError
from tests.simulation.replay import run_scenario
from tests.simulation.scenario import changed, scenario_of
from tests.support.node import REASON, needs_node
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = 20
"""A few, to show that seeds run; `make simulate` searches."""
COMMAND = [sys.executable, "-m", "tools.simulate", "--javascript", "--seeds", str(SEEDS)]


@needs_node
@pytest.mark.law(
    "K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K10", "K11", "K12", "K13", "K14", "K15",
    "K27", "K33", "K36", "K37",
)  # fmt: skip
def test_every_promise_holds_beside_javascript_clients_whatever_goes_wrong() -> None:
    """In two worker processes, each with a process of Node.js."""
    ran = subprocess.run(
        [*COMMAND, "--processes", "2"],
        cwd=ROOT, capture_output=True, check=False, text=True, timeout=300,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout + ran.stderr
    for what in (
        "client in Node.js", "open in IndexedDB", "open in memory", "app killed in JavaScript",
    ):  # fmt: skip
        assert re.search(rf"^ +[\d,]+  {what}$", ran.stdout, re.MULTILINE), what
    assert "0 broke a promise" in ran.stdout


def test_simulation_of_javascript_clients_is_left_out_with_a_reason() -> None:
    environment = {**os.environ, REASON: "no compiler for this machine"}
    ran = subprocess.run(
        COMMAND, cwd=ROOT, env=environment, capture_output=True, check=True, text=True
    )

    assert ran.stdout == "without Node.js: no compiler for this machine\n"


@needs_node
def test_same_seed_gives_the_same_run_with_javascript_clients() -> None:
    """Whatever the process of Node.js has done before."""

    def lived(seed: int) -> list[str]:
        return run_scenario(changed(scenario_of(seed), {"javascript": True}), traced=True).trace

    assert [lived(seed) for seed in (3, 9)] == [lived(seed) for seed in (3, 9)]


@needs_node
def test_each_deliberate_fault_of_the_javascript_client_changes_a_text_that_is_there() -> None:
    for fault in some([*[fault for fault in FAULTS if fault.is_in_node], *BY_TRACES]):
        with broken(fault):
            assert node.mutation is not None
            node.mutated(node.mutation)


@needs_node
@pytest.mark.parametrize("fault", BY_TRACES, ids=lambda fault: fault.name)
def test_a_trace_notices_each_fault_of_the_javascript_client_that_seeds_come_across_too_rarely(
    fault: Deliberate,
) -> None:
    with broken(fault):
        assert node.mutation is not None
        build = node.mutated(node.mutation)
    ran = subprocess.run(
        ["node", "--test", "--test-name-pattern=trace says", build / "test" / "vectors.test.js"],
        capture_output=True, check=False, text=True, timeout=120,
    )  # fmt: skip

    assert re.search(r"^\s*trace [0-9]+ \(|'trace [0-9]+ \(", ran.stdout, re.MULTILINE), ran.stdout


@needs_node
def test_fault_of_which_the_text_is_not_there_does_not_run() -> None:
    with pytest.raises(NodeError, match=r"sync\.js has 0 times: no such text"):
        node.mutated(node.Mutation("sync", (("no such text", ""),)))


@pytest.fixture
def process() -> Iterator[node.Node]:
    running = node.running()
    running.ask({"do": "begin"})
    yield running
    node.stop()


def opened(process: node.Node) -> None:
    options = {"name": "d", "clientId": "c1", "pageDeltas": 10}
    process.ask({"do": "open", "device": 1, "ms": 1, "options": options, "tables": []})


def inserted(process: node.Node, points: int | None) -> dict[str, Any]:
    edit = {"method": "insert", "given": ["notes", "r1", {"n": 1}]}
    return process.ask({"do": "call", "device": 1, "ms": 1, "points": points, **edit})


def waiting(process: node.Node) -> list[Any]:
    edits: list[Any] = process.ask({"do": "outbox", "device": 1, "ms": 1})["value"]
    return edits


@needs_node
def test_page_that_dies_before_its_transaction_has_written_nothing(process: node.Node) -> None:
    opened(process)
    assert inserted(process, 0)["died"] == "before a transaction"

    opened(process)
    assert waiting(process) == []


@needs_node
def test_page_that_dies_behind_its_transaction_has_written_all_of_it(process: node.Node) -> None:
    opened(process)
    assert inserted(process, 1)["died"] == "behind one"

    opened(process)
    (edit,) = waiting(process)
    assert edit["delta"]["rowId"] == "r1"


@needs_node
def test_node_that_ends_is_told_and_another_takes_its_place(process: node.Node) -> None:
    opened(process)
    process._process.kill()
    with pytest.raises(NodeError, match=r"Node\.js ended"):
        inserted(process, None)

    other = node.running()
    assert other is not process
    assert other.ask({"do": "begin"}) == {}
