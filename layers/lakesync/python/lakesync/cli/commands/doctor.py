"""`lakesync doctor`: what is wrong with a deployment, and what to do about it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.doctor.diagnosis import Verdict
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lakesync.cli.doctor.diagnosis import Diagnosis

_LIST: Final = re.compile(r"[0-9]+(,[0-9]+){3,4}")
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
    before: Annotated[
        bool, typer.Option("--before", help="Check the account before a stack is deployed to it.")
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, as it will be deployed (with --before). Repeatable."),
    ] = None,
    artefacts: Annotated[
        str, typer.Option(help="The bucket of `sam deploy --s3-bucket` (with --before).")
    ] = "",
) -> None:
    """Check a deployment from outside and inside, and print for each finding what to do.

    Nothing is changed. It checks the stack, its address, the clock, functions and layers,
    permissions (by IAM's simulation), quotas, alarms and their subscribers, schedules, the lag of
    buffer, lake and destinations, connectors and polled flows, queues, whether the buffer can be
    restored, and versions in the bucket. Needs AWS credentials.

    With --before it checks the account and this machine instead: API Gateway's log role, quotas,
    Glue in the Region, Lake Formation, the key of the bucket for built packages, the rights to
    deploy a stack of the name --stack (by default lakesync), and SAM's version.

    On the stage local it notes what such a stack cannot have: quotas, subscribers of alarms.

    Exits with 0 if all is well, 1 if something is wrong, 2 if something could not be checked.

    Example:
      lakesync doctor --stack lakesync
      lakesync doctor --stack lakesync --json --skip service-quotas
      lakesync doctor --before --stack lakesync --parameter SocketAccessLogs=on
    """
    skipped = frozenset(skip or ())
    if before:
        _report(session, _before(session, skipped, parameter or [], artefacts))
    else:
        _report(session, _deployed(session, skipped))


def _report(session: Session, results: Iterator[tuple[str, list[Diagnosis]]]) -> None:
    from lakesync.cli.doctor.diagnosis import exit_code

    every: list[Diagnosis] = []
    for name, diagnoses in results:
        every += diagnoses
        for diagnosis in diagnoses:
            _tell(session, name, diagnosis)
    session.out.note(_summary(every))
    raise typer.Exit(exit_code(every))


def _deployed(session: Session, skipped: frozenset[str]) -> Iterator[tuple[str, list[Diagnosis]]]:
    from lakesync.cli.doctor.checks import CHECKS, examine
    from lakesync.cli.doctor.deployed import Deployed

    _known(skipped, CHECKS)
    return examine(Deployed(session.aws, session.place.url), skipped)


def _before(
    session: Session, skipped: frozenset[str], parameters: list[str], artefacts: str
) -> Iterator[tuple[str, list[Diagnosis]]]:
    from lakesync.cli.doctor.before import CHECKS, LISTS, Ahead, examine_ahead

    _known(skipped, CHECKS)
    given: dict[str, str] = {}
    for each in parameters:
        name, equals, value = each.partition("=")
        if not equals or (name in LISTS and not _LIST.fullmatch(value)):
            raise UsageFault(
                f"--parameter {each[:40]!r} is not NAME=VALUE as the template takes it"
            )
        given[name] = value
    stack = session.place.stack or "lakesync"
    return examine_ahead(Ahead(session.aws, stack, artefacts, given), skipped)


def _known(skipped: frozenset[str], checks: Collection[str]) -> None:
    if strangers := sorted(skipped - set(checks)):
        raise UsageFault(f"there is no check {strangers[0][:20]!r}: use {', '.join(checks)}")


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
