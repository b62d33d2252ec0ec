"""`lakesync query`: SQL on the synced tables as they are in the lake, now or in the past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.asof import as_of as read_as_of
from lakesync.cli.faults import UsageFault
from lakesync.cli.output import plural
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.cli.lake import Lake

_SHOWN_MAX: Final = 200


@command
def query(
    session: Session,
    sql: Annotated[str, typer.Argument(help="What to ask, in DuckDB's SQL.")],
    *,
    as_of: Annotated[
        str | None,
        typer.Option(help="A time (ISO-8601), a snapshot id, or a commit stamp."),
    ] = None,
    all_columns: Annotated[
        bool,
        typer.Option("--all-columns", help="Show LakeSync's own columns, and deleted rows."),
    ] = False,
) -> None:
    """Query the Iceberg tables of the gateway; each synced table is a view under its own name.

    DuckDB computes on this machine what PyIceberg reads from S3; nothing in the lake is changed.
    The history of a table, delta by delta, is in its twin: todos__changes.

    Example:
      lakesync query "select origin, count(*) as flights from flights group by origin"
      lakesync query "select * from todos" --as-of 2026-11-21T10:00:00Z
    """
    from lakesync.cli.lake import Lake

    moment = None if as_of is None else read_as_of(as_of)
    with session.out.progress("reading the lake …"):
        lake = Lake(session.aws, session.connection.gateway)
        columns, rows = run(lake, sql, moment, all_columns=all_columns)
    if session.out.json_lines:
        for row in rows:
            session.out.json(dict(zip(columns, row, strict=True)))
        return
    session.out.table(columns, rows[:_SHOWN_MAX])
    rest = f", {_SHOWN_MAX} shown: see --json" if len(rows) > _SHOWN_MAX else ""
    session.out.note(f"{plural(len(rows), 'row')}{rest}")


def run(
    lake: Lake, sql: str, moment: Any = None, *, all_columns: bool = False
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Give the columns and rows of a query.

    Raises:
        UsageFault: the SQL is not understood, or names a table that is not there.
    """
    import duckdb

    database = duckdb.connect()
    try:
        wanted = {name.lower() for name in database.get_table_names(sql)}
        for name in lake.names():
            if name.lower() in wanted:
                database.register(name, lake.read(name, moment, all_columns=all_columns))
        answer = database.execute(sql)
        return [column[0] for column in answer.description or ()], answer.fetchall()
    except duckdb.Error as exc:
        raise UsageFault(_sentence(str(exc), lake.names())) from exc
    finally:
        database.close()


def _sentence(text: str, tables: Collection[str]) -> str:
    first = text.strip().splitlines()[0]
    if first.startswith("Catalog Error: Table"):
        known = (
            ", ".join(sorted(tables)) or "none yet: push something, then `lakesync flush --wait`"
        )
        return f"{first.removesuffix('!')}; tables in the lake: {known}"
    return f"the query was refused: {first}"
