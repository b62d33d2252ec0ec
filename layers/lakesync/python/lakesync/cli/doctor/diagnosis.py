"""The results of checks: well, wrong, not checked, or a note of what the stage cannot have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Return that something is as it should be."""
    return Diagnosis(Verdict.WELL, what)


def wrong(what: str, do: str) -> Diagnosis:
    """Return what is wrong, and what to do."""
    return Diagnosis(Verdict.WRONG, what, do)


def unchecked(what: str, do: str) -> Diagnosis:
    """Return what could not be checked, and what would make it possible."""
    return Diagnosis(Verdict.UNCHECKED, what, do)


def note(what: str) -> Diagnosis:
    """Return what cannot be in this stage, and need not be."""
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
