"""Vectors: their files hold what the library computes, and the Python client does what they say."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.node import run_node
from tests.support.repository import ROOT
from tests.support.vectors import FOLDER, SUBJECTS, written
from tests.support.vectors.traces import kept, play

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = FOLDER / "traces.json"
PARTS = 10
SHOWN_MIN = 10
"""Traces that each law is shown by, if traces can show it."""
CASES = {
    "clock": 200, "canonical": 400, "ids": 200, "merge": 1_000, "values": 400, "wire": 150,
    "visibility": 300, "traces": 500,
}  # fmt: skip
IN_NO_TRACE = {
    "K17": "threads and waits", "K18": "tokens", "K19": "SQL", "K21": "watches", "K22": "callbacks",
    "K23": "the status", "K24": "asyncio", "K25": "SQL", "K26": "files", "K29": "local tables",
    "K31": "files", "K34": "types: values.json", "K35": "Python's classes", "K39": "memory",
    "K40": "sources",
}  # fmt: skip
"""Laws of the client that are about a language's interface, or about what no gateway sees."""


def cases_of(name: str) -> list[Any]:
    cases: list[Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    return cases


def client_laws() -> Iterator[str]:
    for line in (ROOT / "docs" / "spec" / "client.md").read_text("utf-8").splitlines():
        if line.startswith("**K"):
            yield line.removeprefix("**").partition(".")[0]


@pytest.mark.parametrize("name", sorted(SUBJECTS.keys() - {"traces"}))
def test_file_of_vectors_holds_what_the_library_computes(name: str) -> None:
    """If it is meant to change: `python -m tests.support.vectors`."""
    assert (FOLDER / f"{name}.json").read_text("utf-8") == written(SUBJECTS[name])


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_vectors_are_as_many_as_the_guide_says(name: str) -> None:
    guide = (ROOT / "docs" / "clients" / "writing-a-client.md").read_text("utf-8")

    assert len(cases_of(name)) == CASES[name]
    assert f"| `{name}.json` | {CASES[name]:,} |" in guide


@pytest.mark.law("K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K12", "K13", "K15", "K27")
@pytest.mark.parametrize("part", range(PARTS))
def test_client_does_what_each_trace_says(part: int) -> None:
    for trace in kept(TRACES)[part::PARTS]:
        play(trace)


def test_each_law_that_traces_can_show_is_shown_by_ten_of_them() -> None:
    shown = Counter(law for trace in kept(TRACES) for law in trace["laws"])

    assert {law for law in client_laws() if shown[law] < SHOWN_MIN} == IN_NO_TRACE.keys()
    assert max(len(trace["given"]["events"]) for trace in kept(TRACES)) <= 40


@pytest.mark.law("M4", "M5", "I4")
def test_reader_in_javascript_merges_as_the_vectors_say() -> None:
    cases = cases_of("merge")
    made = run_node("../vectors/merged.mjs", [case["given"]["deltas"] for case in cases])

    assert made == [[case["expect"]["row"]] * 2 for case in cases]
