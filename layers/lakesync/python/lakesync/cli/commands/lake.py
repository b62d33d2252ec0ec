"""`lakesync lake`: the state of the gateway's tables in the lake, and their maintenance."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.audited import audited
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.lake import Lake

_DAY_MS: Final = 86_400_000

_Table = Annotated[
    str | None,
    typer.Option(help="Only this table and its history; by default all of the gateway's."),
]


@command
def status(session: Session, *, table: _Table = None) -> None:
    """Show each table in the lake: its rows, files and bytes, its mark, and its waiting batches.

    The table has every commit up to its mark. Rows include tombstones. Tables that gateways of the
    stack share are listed below. Needs AWS credentials.

    Example:
      lakesync lake status
    """
    from lakesync.cli.lake_shares import share_states
    from lakesync.cli.lake_status import table_states

    with session.out.progress("reading the lake …"):
        lake = lake_of(session, table)
        states = list(table_states(session.aws, lake, session.connection.gateway, table))
        shares = list(share_states(session.aws))
    if session.out.json_lines:
        for state in (*states, *shares):
            session.out.json(state)
        return
    if not states:
        session.out.text("there is no table in the lake yet: lakesync flush --wait")
    else:
        _tell_tables(session, states)
    if shares:
        session.out.table(tuple(shares[0]), [tuple(one.values()) for one in shares])


def _tell_tables(session: Session, states: Sequence[dict[str, object]]) -> None:
    session.out.table(tuple(states[0]), [tuple(state.values()) for state in states])
    waiting = sum(int(str(state["waiting"])) for state in states)
    if waiting:
        session.out.note(
            f"{plural(waiting, 'batch')} wait: lakesync status shows whether a Glue run is active"
        )


@command
def maintain(
    session: Session,
    *,
    table: _Table = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which steps are worthwhile; start nothing.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the run.", min=1)] = 3_600,
) -> None:
    """Compact small files of the gateway's tables, expire old snapshots and remove orphans, now.

    A schedule does this for all gateways where it is worthwhile. The command starts a Glue run and
    waits for it. Safe to repeat and to interrupt: a started run continues. Needs AWS credentials.

    Example:
      lakesync lake maintain --dry-run
      lakesync lake maintain --table todos
    """
    with session.out.progress("reading the lake …"):
        lake = lake_of(session, table)
    from lakesync.cli.lake_figures import lake_figures
    from lakesync.cli.lake_job import run_job

    if dry_run:
        _tell_plan(session, lake, table)
        return
    only = "/".join(part for part in (session.connection.gateway, table) if part)
    with audited(session, "maintainLake", table or "", lambda: lake_figures(session, table)):
        report = run_job(session, only, timeout)
    if session.out.json_lines:
        session.out.json(report)
        return
    names = ("table", "ended", "done", "files", "delete files", "snapshots", "bytes", "orphans")
    session.out.table(names, [_row(each) for each in report["each"]])
    for each in report["each"]:
        if each["reason"]:
            session.out.note(f"{each['table']}: {each['outcome']}: {each['reason']}")


@command
def repair(
    session: Session,
    *,
    table: _Table = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which marks are lost; change nothing.")
    ] = False,
) -> None:
    """Restore the lost marks of tables. Runs refuse a table without its mark, and its batches wait.

    A mark is lost if somebody drops the tag lakesync and expires snapshots, or rolls the table
    back. It is computed from the table's rows and history. Safe to repeat. Needs AWS credentials.

    Example:
      lakesync lake repair --dry-run
      lakesync lake repair --table todos
    """
    from lakesync.cli.lake_repair import mark_shown, repairs, set_mark

    with session.out.progress("reading the lake …"):
        lake = lake_of(session, table)
        results = list(repairs(lake, table))
        lost = [one for one in results if one.is_lost]
        for one in lost if not dry_run else ():
            own = lake.table(one.table)
            with audited(session, "repairLake", one.table, partial(mark_shown, own)):
                set_mark(own, one.mark)
    if session.out.json_lines:
        for one in results:
            session.out.json({"table": one.table, "mark": str(one.mark), "lost": one.is_lost})
    elif not lost:
        session.out.text(f"every table has its mark: {len(results)} checked")
    for one in () if session.out.json_lines else lost:
        done = "would get" if dry_run else "has"
        session.out.text(f"{one.table} had lost its mark, and {done} {one.mark} again")
    if lost and not dry_run:
        session.out.note("waiting batches are applied by the next run: lakesync flush --wait")


def lake_of(session: Session, table: str | None) -> Lake:
    """Return the gateway's tables in the lake.

    Raises:
        NotFound: there is no such gateway, or the table is not in the lake.
    """
    from lakesync.cli.lake import Lake

    lake = Lake(session.aws, session.connection.gateway)
    must_exist_in_stack(session, lake.names())
    if table is not None and table not in lake.names():
        known = ", ".join(lake.names()) or "none yet: lakesync flush --wait"
        raise NotFound(f"there is no table {table[:64]!r} in the lake; there are: {known}")
    return lake


def _tell_plan(session: Session, lake: Lake, table: str | None) -> None:
    """Show which steps are worthwhile, by the figures that the job decides by."""
    from lakesync.cli.lake_figures import figures
    from lakesync.cli.lake_job import keep_days
    from lakesync.maintenance.lake_plan import Step, steps_for

    now_ms = time.time_ns() // 1_000_000
    old_ms = now_ms - keep_days(session) * _DAY_MS
    plans = []
    for name in lake.names_of(table):
        now = figures(lake.table(name), old_ms)
        # Orphans are found by listing all files, which only the job does.
        steps = [step for step in steps_for(now, name, now_ms) if step is not Step.ORPHANS]
        plans.append({"table": name, "pays": steps, **now._asdict()})
    if session.out.json_lines:
        for plan in plans:
            session.out.json(plan)
        return
    rows = [(p["table"], ", ".join(p["pays"]) or "nothing", *list(p.values())[2:]) for p in plans]
    names = [name.replace("_", " ") for name in plans[0]] if plans else ["table"]
    session.out.table(names, rows)
    session.out.note("nothing was started; a run also removes files that no snapshot refers to")


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    before, after = each["before"], each["after"] or each["before"]

    def moved(name: str) -> str:
        return f"{before[name]:,} → {after[name]:,}"

    name = each["table"].rpartition(".")[2]
    figures = (moved(one) for one in ("files", "delete_files", "snapshots", "bytes"))
    return name, each["outcome"], ", ".join(each["steps"]) or "nothing", *figures, each["orphans"]
