"""State machines: every state is reached, every task is tried again, every end is an end."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.infrastructure.stack import resources
from tests.support.repository import ROOT

FILES = sorted((ROOT / "stepfunctions").glob("*.asl.json"))


def next_states(state: dict[str, Any]) -> set[str]:
    choices = [*state.get("Choices", []), *state.get("Catch", [])]
    named = {state.get("Next"), state.get("Default"), *(choice["Next"] for choice in choices)}
    return {name for name in named if name}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_state_is_reached_and_exists(path: Any) -> None:
    machine = json.loads(path.read_text())
    states = machine["States"]
    reached, waiting = set(), {machine["StartAt"]}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= next_states(states[name]) - reached

    assert reached == set(states)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_task_is_tried_again_and_the_whole_ends(path: Any) -> None:
    machine = json.loads(path.read_text())

    assert machine["TimeoutSeconds"] > 0
    for name, state in machine["States"].items():
        if state["Type"] == "Task":
            assert state["Retry"], name
        else:
            assert state["Type"] in {"Choice", "Succeed", "Fail"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_substitution_is_given(path: Any) -> None:
    machines = resources("AWS::Serverless::StateMachine").values()
    given = {
        machine["Properties"]["DefinitionUri"]: set(
            machine["Properties"]["DefinitionSubstitutions"]
        )
        for machine in machines
    }

    asked = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    assert given[f"stepfunctions/{path.name}"] == asked
