"""Finds what is wrong with a deployment: the deployed stack, read once, and diagnoses of it.

There is one module for each family of checks. A check fetches what it needs (``…_facts``) and
leaves the decision to a function of those facts alone, which tests call without a cloud. Checks
know nothing of each other, so one that may not ask hides no other.

A diagnosis is well, wrong, not checked, or a note of what the stage cannot have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from lakesync.analysis.connection import stack_resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.analysis.connection import Aws

EXIT_WELL: Final = 0
EXIT_WRONG: Final = 1
EXIT_UNCHECKED: Final = 2


class Verdict(StrEnum):
    """The result of a check."""

    WELL = "well"
    WRONG = "wrong"
    UNCHECKED = "unchecked"
    NOTE = "note"
    """It cannot be in this stage, and need not be."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of a check, and what to do about it."""

    verdict: Verdict
    what: str
    do: str = ""


def well(what: str) -> Diagnosis:
    return Diagnosis(Verdict.WELL, what)


def wrong(what: str, do: str) -> Diagnosis:
    return Diagnosis(Verdict.WRONG, what, do)


def unchecked(what: str, do: str) -> Diagnosis:
    return Diagnosis(Verdict.UNCHECKED, what, do)


def note(what: str) -> Diagnosis:
    return Diagnosis(Verdict.NOTE, what)


def excused(diagnoses: Iterable[Diagnosis], why: str) -> list[Diagnosis]:
    """Return diagnoses with notes in the place of all that are not well, which say why."""
    return [
        each if each.verdict is Verdict.WELL else note(f"{each.what} ({why})") for each in diagnoses
    ]


def exit_code(diagnoses: Iterable[Diagnosis]) -> int:
    """Return the overall result: something wrong has priority over something not checked."""
    verdicts = {diagnosis.verdict for diagnosis in diagnoses}
    if Verdict.WRONG in verdicts:
        return EXIT_WRONG
    return EXIT_UNCHECKED if Verdict.UNCHECKED in verdicts else EXIT_WELL


def duration(seconds: float) -> str:
    """Return a duration as text for people: ``40 s``, ``25 min``, ``6 h``, ``12 days``."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- the stack that is checked --------------------------------------------------------------------


LOCAL: Final = "local"
"""The stage of a stack on a developer's machine."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the stack."""

    logical: str
    kind: str
    physical: str


class Deployed:
    """One stack and its address. Requests are sent only when needed."""

    def __init__(self, aws: Aws, url: str | None = None) -> None:
        self.aws = aws
        self._url = url

    def client(self, service: str) -> Any:
        return self.aws.client(service)

    @property
    def url(self) -> str:
        return self._url or self.aws.output("HttpUrl")

    @property
    def now_s(self) -> float:
        """The time by this machine's clock."""
        return time.time()

    @cached_property
    def stack(self) -> dict[str, Any]:
        self.aws.outputs  # noqa: B018 - says what is missing, in the command line's words
        stacks = self.client("cloudformation").describe_stacks(StackName=self.aws.stack)["Stacks"]
        stack: dict[str, Any] = stacks[0]
        return stack

    @cached_property
    def parameters(self) -> dict[str, str]:
        return {
            item["ParameterKey"]: item.get("ResolvedValue") or item.get("ParameterValue", "")
            for item in self.stack.get("Parameters", [])
        }

    @property
    def is_local(self) -> bool:
        """Whether the stack's stage is a developer's: no quotas of AWS, nobody hears alarms."""
        return self.parameters.get("Stage") == LOCAL

    def number(self, parameter: str, default: int) -> int:
        """Return a numeric parameter; the template's default if the stack is older than it."""
        text = self.parameters.get(parameter, "")
        return int(text) if text.isdigit() else default

    def part(self, parameter: str, place: int, default: int) -> int:
        """Return one of a parameter's numbers, which have commas between, as ``number`` does."""
        parts = self.parameters.get(parameter, "").split(",")
        return int(parts[place]) if place < len(parts) and parts[place].isdigit() else default

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        return tuple(
            Resource(item["LogicalResourceId"], item["ResourceType"], item["PhysicalResourceId"])
            for item in stack_resources(self.client("cloudformation"), self.aws.stack)
        )

    def of_kind(self, kind: str) -> Iterator[Resource]:
        return (resource for resource in self.resources if resource.kind == kind)
