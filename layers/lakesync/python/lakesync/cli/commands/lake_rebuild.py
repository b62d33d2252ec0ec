"""`lakesync lake rebuild`: a table's rows in the lake, made anew out of its changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli.audited import audited
from lakesync.cli.output import plural
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterator


@command
def rebuild(
    session: Session,
    *,
    table: Annotated[str, typer.Option(help="The table, by its name in the gateway.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is wrong, and change nothing.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the run.", min=1)] = 3_600,
) -> None:
    """Make the rows of a table in the lake anew, out of its changes. For what was changed by hand.

    Rows that somebody deleted, changed or added in the lake, or a table that was dropped, become
    again what the gateway's deltas say. One commit; whoever reads sees the rows of before or those
    of after. Safe to repeat, and to interrupt: a run that was started goes on.

    Example:
      lakesync lake rebuild --table todos --dry-run
      lakesync lake rebuild --table todos
    """
    report = rebuild_in_lake(session, table, timeout, dry_run=dry_run)
    if session.out.json_lines:
        session.out.json(report)
        return
    for line in report_lines(report, dry_run=dry_run):
        session.out.text(line)


def rebuild_in_lake(
    session: Session, table: str, timeout_s: float, *, dry_run: bool
) -> dict[str, Any]:
    """Have the stack's job make a table anew, or say what that would do; give its report.

    Raises:
        Unavailable: the job failed, or takes longer; what it did is done.
    """
    from lakesync.cli.lake_figures import lake_figures
    from lakesync.cli.lake_job import run_job

    only = f"{session.connection.gateway}/{table}"
    if dry_run:
        return run_job(session, only, timeout_s, {"--rebuild": "dry"})
    with audited(session, "rebuildLake", table, partial(lake_figures, session, table)):
        return run_job(session, only, timeout_s, {"--rebuild": "yes"})


def report_lines(report: dict[str, Any], *, dry_run: bool) -> Iterator[str]:
    """Say what was wrong, and what became of it."""
    wrong = [
        f"{report[name]:,} {words}"
        for name, words in (
            ("missing", "missing"),
            ("changed", "other than their changes say"),
            ("surplus", "that no change is of"),
        )
        if report[name]
    ]
    if report["made"]:
        yield f"{report['table']} was not there"
    yield f"{plural(report['rows'], 'row')}: {', '.join(wrong) or 'all as their changes say'}"
    if report["written"]:
        yield f"they were written anew, up to {report['mark']}"
    elif dry_run and (wrong or report["made"]):
        yield "nothing was changed; without --dry-run they are written anew"
