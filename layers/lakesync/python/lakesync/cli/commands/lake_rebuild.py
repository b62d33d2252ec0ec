"""`lakesync lake rebuild`: rebuild a table's rows in the lake from its changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli.audited import audited
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterator


@command
def rebuild(
    session: Session,
    *,
    table: Annotated[str, typer.Option(help="The table, by its name in the gateway.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is wrong; change nothing.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the run.", min=1)] = 3_600,
) -> None:
    """Rebuild a table's rows in the lake from its changes, after it was changed by hand.

    Rows that were deleted, changed or added in the lake, or a dropped table, are made equal to the
    gateway's deltas again, in one atomic commit. The command starts a Glue run and waits for it.
    Safe to repeat and to interrupt: a started run continues. Needs AWS credentials.

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
    """Run the stack's job to rebuild a table, or to show what that would do; give its report.

    Raises:
        Unavailable: the job failed, or takes longer than the time-out.
    """
    from lakesync.cli.lake_figures import lake_figures
    from lakesync.cli.lake_job import run_job

    must_exist_in_stack(session)
    only = f"{session.connection.gateway}/{table}"
    if dry_run:
        return run_job(session, only, timeout_s, {"--rebuild": "dry"})
    with audited(session, "rebuildLake", table, partial(lake_figures, session, table)):
        return run_job(session, only, timeout_s, {"--rebuild": "yes"})


def report_lines(report: dict[str, Any], *, dry_run: bool) -> Iterator[str]:
    """Yield what was wrong, and what was done about it, as lines."""
    wrong = [
        f"{report[name]:,} {words}"
        for name, words in (
            ("missing", "missing"),
            ("changed", "different from their changes"),
            ("surplus", "without any change"),
        )
        if report[name]
    ]
    if report["made"]:
        yield f"{report['table']} did not exist"
    yield f"{plural(report['rows'], 'row')}: {', '.join(wrong) or 'all equal to their changes'}"
    if report["written"]:
        yield f"they were rebuilt, up to {report['mark']}"
    elif dry_run and (wrong or report["made"]):
        yield "nothing was changed; without --dry-run they are rebuilt"
