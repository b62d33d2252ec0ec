"""`lakesync lake views`: print the SQL of tables' views, or create those of Athena."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.audited import audited
from lakesync.cli.commands.lake import lake_of
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import AdapterFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.materialise.views import View, ViewedTable


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
    from lakesync.cli.lake_views import viewed_tables, views_of_share
    from lakesync.materialise.view_dialects import DIALECTS

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
    """Make views with the caller's own rights: glue:GetTable, CreateTable and UpdateTable.

    Raises:
        AdapterFailed: some could not be made.
        UsageFault: the lake's catalogue is not Glue's, where Athena looks for views.
    """
    from lakesync.cli.catalogue import glue_views
    from lakesync.cli.lake_views import views_shown

    glue = glue_views(session.aws)
    faults: dict[str, str] = {}
    with audited(session, "createLakeViews", "", partial(views_shown, glue, tables)):
        for each in tables:
            faults.update(glue.keep(each))
        if faults:
            raise AdapterFailed("; ".join(f"{name}: {fault}" for name, fault in faults.items()))
    session.out.text(f"as they should be: the views of {plural(len(tables), 'table')}")
