"""`lakesync doctor`: what is wrong with a deployment, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.doctor.diagnosis import Verdict
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from lakesync.cli.doctor.diagnosis import Diagnosis

_MARKS: Final = {
    Verdict.WELL: "well", Verdict.WRONG: "WRONG",
    Verdict.UNCHECKED: "not checked", Verdict.NOTE: "note",
}  # fmt: skip


@command
def doctor(
    session: Session,
    *,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Skip the check of this name. Repeatable."),
    ] = None,
) -> None:
    """Check a deployment from outside and inside, and print for each finding what to do.

    Nothing is changed. It checks the stack, its address, the clock, functions and layers,
    permissions (by IAM's simulation), quotas, alarms and their subscribers, schedules, the lag of
    buffer, lake and destinations, connectors and polled flows, queues, whether the buffer can be
    restored, and versions in the bucket. Needs AWS credentials.

    On the stage local it notes what such a stack cannot have: quotas, subscribers of alarms.

    Exits with 0 if all is well, 1 if something is wrong, 2 if something could not be checked.

    Example:
      lakesync doctor --stack lakesync
      lakesync doctor --stack lakesync --json --skip service-quotas
    """
    from lakesync.cli.doctor.checks import CHECKS, examine
    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import exit_code

    skipped = frozenset(skip or ())
    if strangers := sorted(skipped - set(CHECKS)):
        raise UsageFault(f"there is no check {strangers[0][:20]!r}: use {', '.join(CHECKS)}")
    every: list[Diagnosis] = []
    for name, diagnoses in examine(Deployed(session.aws, session.place.url), skipped):
        every += diagnoses
        for diagnosis in diagnoses:
            _tell(session, name, diagnosis)
    session.out.note(_summary(every))
    raise typer.Exit(exit_code(every))


def _tell(session: Session, check: str, diagnosis: Diagnosis) -> None:
    answer = {
        "check": check,
        "verdict": str(diagnosis.verdict),
        "what": diagnosis.what,
        "do": diagnosis.do,
    }
    lines = f"{_MARKS[diagnosis.verdict]:<11}  {check}: {diagnosis.what}"
    if diagnosis.do:
        lines += f"\n{'':13}→ {diagnosis.do}"
    session.out.answer(answer, lines)


def _summary(diagnoses: list[Diagnosis]) -> str:
    counts = dict.fromkeys(Verdict, 0)
    for diagnosis in diagnoses:
        counts[diagnosis.verdict] += 1
    wrong, unchecked = counts[Verdict.WRONG], counts[Verdict.UNCHECKED]
    if not wrong and not unchecked:
        notes = f", {plural(counts[Verdict.NOTE], 'note')}" if counts[Verdict.NOTE] else ""
        return f"all is well: {plural(counts[Verdict.WELL], 'check')}{notes}"
    return f"{wrong} wrong, {unchecked} not checked, {counts[Verdict.WELL]} well"
