"""State machines: every state is reached, every task is tried again, every end is an end."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.infrastructure.stack import resources
from tests.support.repository import ROOT
from tests.support.some import some
from tools.local_stack.paths import EMULATOR_PYTHON

FILES = sorted((ROOT / "stepfunctions").glob("*.asl.json"))


def next_states(state: dict[str, Any]) -> set[str]:
    choices = [*state.get("Choices", []), *state.get("Catch", [])]
    named = {state.get("Next"), state.get("Default"), *(choice["Next"] for choice in choices)}
    return {name for name in named if name}


def flows(flow: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [state["ItemProcessor"] for state in flow["States"].values() if state["Type"] == "Map"]
    return [flow, *(nested for one in inner for nested in flows(one))]


def each_state(machine: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [state for flow in flows(machine) for state in flow["States"].items()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_state_is_reachable_and_every_transition_has_a_target(path: Any) -> None:
    for flow in some(flows(json.loads(path.read_text()))):
        states = flow["States"]
        reached, waiting = set(), {flow["StartAt"]}
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= next_states(states[name]) - reached

        assert reached == set(states)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_task_has_retries_and_every_state_machine_has_a_timeout(path: Any) -> None:
    machine = json.loads(path.read_text())

    assert machine["TimeoutSeconds"] > 0
    for name, state in some(each_state(machine)):
        if state["Type"] == "Task":
            assert state["Retry"], name
        else:
            assert state["Type"] in {"Choice", "Map", "Pass", "Succeed", "Fail", "Wait"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tasks_inside_a_map_catch_their_own_errors(path: Any) -> None:
    for flow in flows(json.loads(path.read_text()))[1:]:
        for name, state in flow["States"].items():
            if state["Type"] == "Task":
                assert [catcher["ErrorEquals"] for catcher in state["Catch"]] == [["States.ALL"]], (
                    name
                )


def test_sweep_starts_a_run_only_if_a_claim_waits_and_no_run_is_active() -> None:
    states = json.loads((ROOT / "stepfunctions" / "sweep_lake.asl.json").read_text())["States"]
    starts = [name for name, state in states.items() if "glue:start" in state.get("Resource", "")]
    leads = {name: next_states(state) for name, state in states.items()}

    assert starts == ["Materialise"]
    assert [name for name in leads if "Materialise" in leads[name]] == ["AnyAtWork"]
    assert leads["LookForClaims"] == {"AnyWaiting"}
    assert leads["AnyWaiting"] == {"LookForRuns", "NothingWaits"}
    assert leads["LookForRuns"] == {"AnyAtWork"}
    # What it counts must fit a state's result: a run's record is about a kilobyte.
    assert states["LookForRuns"]["Arguments"]["MaxResults"] <= 100


def evaluated(expression: str, *bindings: dict[str, Any]) -> list[Any]:
    """Evaluate an expression of a state for each of some values of ``$states``."""
    program = (
        "import json, sys, jsonata\n"
        "expression, bindings = json.loads(sys.stdin.read())\n"
        "answers = []\n"
        "for states in bindings:\n"
        "    compiled = jsonata.Jsonata(expression)\n"
        "    compiled.assign('states', states)\n"
        "    answers.append(compiled.evaluate({}))\n"
        "print(json.dumps(answers))\n"
    )
    given = json.dumps([expression.removeprefix("{%").removesuffix("%}").strip(), bindings])
    done = subprocess.run(
        [EMULATOR_PYTHON, "-c", program], input=given, capture_output=True, text=True, check=True
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.mark.law("L12")
def test_scheduled_sweep_starts_a_run_for_old_claims_and_ignores_young_ones() -> None:
    """With many gateways something always waits, so that each sweep would start a run."""
    state = json.loads((ROOT / "stepfunctions" / "sweep_lake.asl.json").read_text())["States"]
    [event] = resources("AWS::Serverless::StateMachine")["SweepLake"]["Properties"][
        "Events"
    ].values()
    scheduled = json.loads(event["Properties"]["Input"])
    now = datetime.now(UTC)

    def listed(*ages_s: int, truncated: bool = False, **given: int) -> dict[str, Any]:
        claims = [
            {"LastModified": (now - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")}
            for age_s in ages_s
        ]
        contents = {"Contents": claims} if claims else {}
        return {"result": {**contents, "IsTruncated": truncated}, "input": given}

    looks = state["LookForClaims"]
    assert evaluated(
        looks["Output"]["waiting"],
        listed(**scheduled),
        listed(5, 300, **scheduled),
        listed(5, 700, 30, **scheduled),
        listed(700, **scheduled),
        listed(5, truncated=True, **scheduled),
        listed(5),
        listed(),
    ) == [False, False, True, True, True, True, False]
    # A state's result has at most 256 KiB: an object is listed in some 500 bytes.
    assert looks["Arguments"]["MaxKeys"] <= 500


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_substitution_of_a_state_machine_is_defined(path: Any) -> None:
    machines = resources("AWS::Serverless::StateMachine").values()
    given = {
        machine["Properties"]["DefinitionUri"]: set(
            machine["Properties"]["DefinitionSubstitutions"]
        )
        for machine in machines
    }

    asked = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    assert given[f"stepfunctions/{path.name}"] == asked
