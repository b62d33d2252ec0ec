"""State machines of Step Functions, walked by their own definitions.

What of the language our definitions use is carried out; anything else fails the test that walks it,
so that a definition cannot say more than was walked. Each state, and each further try of a task, is
one step: whoever walks may stop between any two of them, or walk several executions in turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

_EXPRESSION = re.compile(r"\{% (.*) %\}")
_EITHER = re.compile(r"(.+?) \? (.+?) : (.+)")
_EQUAL = re.compile(r"(.+?) = (.+)")
_TEXT = re.compile(r"'([^']*)'")
_STRING = re.compile(r"\$string\((.+)\)")
_PATH = re.compile(r"\$states((?:\.\w+)+)")


class TaskFailed(Exception):
    """A task that failed, with the name by which the machine knows the error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Machine:
    """A definition, with what its tasks do.

    Args:
        definition: as it stands in the file, its names substituted.
        tasks: what a resource does with its arguments; raises `TaskFailed`.
    """

    definition: Mapping[str, Any]
    tasks: Mapping[str, Callable[[Any], Any]]
    wait: Callable[[float], None]
    seconds: Callable[[], float]

    def walk(self, given: Mapping[str, Any]) -> Generator[str]:
        """Walk one execution; returns the name of each state before it is entered.

        Raises:
            TaskFailed: as the execution fails.
        """
        begun, value, name = self.seconds(), dict(given), self.definition["StartAt"]
        while name:
            yield name
            if self.seconds() - begun > self.definition["TimeoutSeconds"]:
                raise TaskFailed("States.Timeout")
            state = self.definition["States"][name]
            scope = {"input": value, "context": {"StateMachine": {"Id": "this machine"}}}
            name = state.get("Next", "")
            match state["Type"]:
                case "Task":
                    arguments = evaluated(state["Arguments"], scope)
                    act = self.tasks[state["Resource"]]
                    retries = state.get("Retry", [])
                    try:
                        scope["result"] = yield from self._tried(act, arguments, retries)
                    except TaskFailed:
                        if "Catch" not in state:
                            raise
                        [caught] = state["Catch"]
                        assert caught["ErrorEquals"] == ["States.ALL"]
                        value, name = evaluated(caught["Output"], scope), caught["Next"]
                    else:
                        value = evaluated(state["Output"], scope)
                case "Choice":
                    name = _chosen(state, scope)
                case "Wait":
                    self.wait(float(evaluated(state["Seconds"], scope)))
                case "Succeed":
                    return
                case other:
                    raise AssertionError(f"no test walks a state of the type {other}")

    def _tried(
        self, act: Callable[[Any], Any], arguments: Any, retries: list[dict[str, Any]]
    ) -> Generator[str, None, Any]:
        """Do a task, and try it again as its definition says."""
        failed = dict.fromkeys(range(len(retries)), 0)
        while True:
            try:
                return act(arguments)
            except TaskFailed as error:
                which, retry = next(
                    (
                        (which, retry)
                        for which, retry in enumerate(retries)
                        if {error.name, "States.ALL"} & {*retry["ErrorEquals"]}
                    ),
                    (-1, {}),
                )
                if not retry or failed[which] >= retry["MaxAttempts"]:
                    raise
                self.wait(retry["IntervalSeconds"] * retry["BackoffRate"] ** failed[which])
                failed[which] += 1
                yield "a further try"


def definition_of(path: Path, **names: str) -> dict[str, Any]:
    text = path.read_text()
    for name, value in {"Partition": "aws", **names}.items():
        text = text.replace(f"${{{name}}}", value)
    assert "${" not in text, "a name that the template substitutes has no value"
    read: dict[str, Any] = json.loads(text)
    assert read["QueryLanguage"] == "JSONata"
    return read


def evaluated(given: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(given, dict):
        fields = {key: evaluated(each, scope) for key, each in given.items()}
        return {key: each for key, each in fields.items() if each is not None}
    match = _EXPRESSION.fullmatch(given) if isinstance(given, str) else None
    return _value(match[1], scope) if match else given


def _value(text: str, scope: Mapping[str, Any]) -> Any:
    if match := _EITHER.fullmatch(text):
        return _value(match[2] if _value(match[1], scope) else match[3], scope)
    if match := _EQUAL.fullmatch(text):
        return _value(match[1], scope) == _value(match[2], scope)
    if match := _STRING.fullmatch(text):
        return str(_value(match[1], scope))
    if match := _TEXT.fullmatch(text):
        return match[1]
    match = _PATH.fullmatch(text)
    assert match, f"no test carries out the expression {text}"
    value: Any = scope
    for field in match[1][1:].split("."):
        value = value.get(field) if value is not None else None  # JSONata: nothing of nothing
    return value


def _chosen(state: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
    holding = (each for each in state["Choices"] if evaluated(each["Condition"], scope))
    chosen: str = next(holding, {"Next": state["Default"]})["Next"]
    return chosen
