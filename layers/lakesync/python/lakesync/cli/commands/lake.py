"""`lakesync lake`: the gateway's tables in the lake, their maintenance, views and shares."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.cli.session import Session, audited, command, must_exist_in_stack
from lakesync.core.wording import plural
from lakesync.errors import AdapterFailed, NotFound
from lakesync.ports.stores import STACK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.analysis.lake import Lake
    from lakesync.materialise.sharing import Share
    from lakesync.materialise.views import View, ViewedTable

# --- status, maintain, repair ---------------------------------------------------------------------


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
    from lakesync.analysis.shared_lake import share_states
    from lakesync.cli.lake_tables import table_states

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
    from lakesync.cli.lake_tables import lake_figures, run_job

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
    from lakesync.cli.lake_tables import mark_shown, repairs, set_mark

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
    """Return the gateway's tables in the lake; refuse another table than these."""
    from lakesync.analysis.lake import Lake

    lake = Lake(session.aws, session.connection.gateway)
    must_exist_in_stack(session, lake.names())
    if table is not None and table not in lake.names():
        known = ", ".join(lake.names()) or "none yet: lakesync flush --wait"
        raise NotFound(f"there is no table {table[:64]!r} in the lake; there are: {known}")
    return lake


def _tell_plan(session: Session, lake: Lake, table: str | None) -> None:
    from lakesync.cli.lake_tables import figures, keep_days
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


# --- rebuild --------------------------------------------------------------------------------------


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
    """Run the stack's job to rebuild a table, or to show what that would do; return its report."""
    from lakesync.cli.lake_tables import lake_figures, run_job

    must_exist_in_stack(session)
    only = f"{session.connection.gateway}/{table}"
    if dry_run:
        return run_job(session, only, timeout_s, {"--rebuild": "dry"})
    with audited(session, "rebuildLake", table, partial(lake_figures, session, table)):
        return run_job(session, only, timeout_s, {"--rebuild": "yes"})


def report_lines(report: dict[str, Any], *, dry_run: bool) -> Iterator[str]:
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


# --- share, unshare -------------------------------------------------------------------------------


@command
def share(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table, by its name at the gateways.")],
    name: Annotated[
        str | None,
        typer.Option("--as", help="The shared table's name; by default the table's own."),
    ] = None,
    gateways: Annotated[
        str, typer.Option(help="A pattern that selects the gateways: team-* or *-eu.")
    ] = "*",
) -> None:
    """Share a table: create a view in the lake over all gateways' tables of that name.

    Anyone who may read the view reads the rows of all these gateways. The column _gateway names
    each row's gateway; a filter on it reads only that gateway's table. New tables and columns are
    included automatically. Athena has the view in a separate database, with NAME__rows and
    NAME__live, which omit tombstones and LakeSync's columns. See also lakesync query --shared, and
    lakesync lake views --shared for other engines.

    Repeating the command replaces the share and its pattern. Needs AWS credentials. The change is
    in the record of the stack: lakesync audit --stack-wide.

    Example:
      lakesync lake share flights
      lakesync lake share flights --as flights_eu --gateways "*-eu"
    """
    from lakesync.analysis.shared_lake import declare, keep_views, shares_of
    from lakesync.cli.lake_tables import share_shown
    from lakesync.core.names import in_words
    from lakesync.materialise.sharing import shared_database

    called = in_words(table) if name is None else name
    shows = partial(share_shown, session.aws, called)
    with (
        session.out.progress("reading the lake …"),
        audited(session, "shareLakeTable", called, shows, gateway=STACK),
    ):
        made = declare(session.aws, called, table, gateways)
        has_views = keep_views(session.aws, shares_of(session.aws), called)
    place = f"{shared_database(session.aws.output('DatabasePrefix'))}.{called}"
    if session.out.json_lines:
        session.out.json({"share": called, "place": place, **share_shown(session.aws, called)})
        return
    _tell(session, made, place if has_views else called)
    if not has_views:
        session.out.note(
            f"the catalogue has no views: lakesync lake views --shared {called} --engine trino"
        )


@command
def unshare(
    session: Session,
    *,
    name: Annotated[
        str, typer.Argument(help="The shared table's name, as in lakesync lake status.")
    ],
) -> None:
    """Remove a shared table. It is a view: no rows of any gateway are removed.

    Example:
      lakesync lake unshare flights
    """
    from lakesync.analysis.shared_lake import withdraw
    from lakesync.cli.lake_tables import share_shown

    shows = partial(share_shown, session.aws, name)
    with audited(session, "unshareLakeTable", name, shows, gateway=STACK):
        was = withdraw(session.aws, name)
    if not was:
        raise NotFound(f"there is no shared table {name[:64]!r}: see lakesync lake status")
    session.out.answer({"share": name, "shared": False}, f"{name} is no longer shared")


def _tell(session: Session, made: Share, place: str) -> None:
    columns = made.columns()
    if not made.members:
        session.out.text(f"{place}: no gateway has it in the lake yet; each is added automatically")
        return
    tables, wide = plural(len(made.members), "table"), plural(len(columns), "column")
    session.out.text(f"{place} has {tables} of as many gateways, {wide}")
    for column in columns:
        if column.is_text_of_others:
            kinds = sorted({one.type for one in column.types.values()})
            session.out.note(f"{column.name} is text: the tables have {', '.join(kinds)}")


# --- views ----------------------------------------------------------------------------------------


@command
def views(
    session: Session,
    *,
    table: Annotated[
        str | None, typer.Option(help="Only this table; by default all of the gateway's.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="The SQL dialect: athena, duckdb, spark or trino.")
    ] = "athena",
    catalog: Annotated[
        str, typer.Option(help="The lake's catalogue name in the engine, for duckdb and trino.")
    ] = "",
    create: Annotated[
        bool, typer.Option("--create", help="Create Athena's views in the Glue Data Catalog.")
    ] = False,
    shared: Annotated[
        str | None,
        typer.Option(help="The views of this shared table and of its member tables."),
    ] = None,
) -> None:
    """Print the SQL of each table's views, which omit deleted rows and LakeSync's own columns.

    flights__rows shows the rows of flights; flights__live includes changes that are not merged yet.
    The materialise job creates and updates Athena's views; --create does so now. For other engines,
    run the printed statements there. Needs AWS credentials.

    Example:
      lakesync lake views --engine duckdb --catalog lake > views.sql
      lakesync lake views --table flights --create
    """
    from lakesync.cli.lake_tables import viewed_tables, views_of_share
    from lakesync.materialise.views import DIALECTS

    if engine not in DIALECTS:
        raise UsageFault(f"--engine {engine[:20]!r} is none of {', '.join(DIALECTS)}")
    if shared is not None:
        several = views_of_share(session.aws, shared, engine, catalog)
        schemas = dict.fromkeys(database for database, _ in several)
        _print(session, several, engine, schemas, is_shared=True)
        return
    with session.out.progress("reading the lake …"):
        tables = list(viewed_tables(lake_of(session, table), table))
    if create:
        _create_views(session, tables)
        return
    _print_each(session, tables, engine, catalog)
    if not tables:
        session.out.note("there is no table in the lake yet: lakesync flush --wait")


def _print_each(session: Session, tables: Sequence[ViewedTable], engine: str, catalog: str) -> None:
    from lakesync.materialise.views import views_of

    each = ((table.database, view) for table in tables for view in views_of(table, engine, catalog))
    _print(session, each, engine, [tables[0].database] if catalog and tables else [])


def _print(
    session: Session,
    views: Iterable[tuple[str, View]],
    engine: str,
    schemas: Iterable[str],
    *,
    is_shared: bool = False,
) -> None:
    """Print statements that create databases, and views in them; JSON of shared ones names it."""
    from lakesync.materialise.views import schema_statement

    if not session.out.json_lines:
        for database in schemas:
            session.out.text(f"{schema_statement(database, engine)};")
    for database, view in views:
        statement = view.statement(database, engine)
        if session.out.json_lines:
            place = {"database": database} if is_shared else {}
            session.out.json({"view": view.name, **place, "sql": statement})
        else:
            session.out.text(f"{statement};")


def _create_views(session: Session, tables: Sequence[ViewedTable]) -> None:
    """Make views with the caller's own rights: glue:GetTable, CreateTable and UpdateTable."""
    from lakesync.analysis.lake import glue_views
    from lakesync.cli.lake_tables import views_shown

    glue = glue_views(session.aws)
    faults: dict[str, str] = {}
    with audited(session, "createLakeViews", "", partial(views_shown, glue, tables)):
        for each in tables:
            faults.update(glue.keep(each))
        if faults:
            raise AdapterFailed("; ".join(f"{name}: {fault}" for name, fault in faults.items()))
    session.out.text(f"as they should be: the views of {plural(len(tables), 'table')}")
