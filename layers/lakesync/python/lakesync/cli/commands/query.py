"""`lakesync query`: SQL on the synced tables in the lake, as of now or of an earlier time."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer looks at it when the command is made
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.asof import as_of as read_as_of
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from lakesync.cli.sql_query import Tables

_SHOWN_MAX: Final = 200
_Changes = Annotated[
    bool, typer.Option("--changes", help="Query each table's history, delta by delta.")
]
_Shared = Annotated[
    bool, typer.Option("--shared", help="Query tables that are shared by several gateways.")
]


@command
def query(
    session: Session,
    sql: Annotated[str, typer.Argument(help="The query, in DuckDB's SQL.")],
    *,
    as_of: Annotated[
        str | None,
        typer.Option(help="Read tables as of a time (ISO-8601), a snapshot id, or a commit stamp."),
    ] = None,
    all_columns: Annotated[
        bool,
        typer.Option("--all-columns", help="Include LakeSync's own columns, and deleted rows."),
    ] = False,
    changes: _Changes = False,
    shared: _Shared = False,
    to: Annotated[
        Path | None,
        typer.Option(help="Write the rows to a file: .csv, .json, .parquet or .arrow."),
    ] = None,
) -> None:
    """Run a SQL query on the gateway's Iceberg tables; each synced table is a view of its name.

    PyIceberg reads from S3 only the columns that the query names and the files that its filters
    select, and DuckDB computes on this machine. Nothing in the lake is changed. Needs AWS
    credentials. The table todos__changes has the history of todos, delta by delta. --shared: see
    lakesync lake share.

    Example:
      lakesync query "select origin, count(*) as flights from flights group by origin"
      lakesync query "select * from todos" --as-of 2026-11-21T10:00:00Z
      lakesync query "select * from flights where day = '2013-01-01'" --to day.parquet
      lakesync query "select _gateway, count(*) from flights group by 1" --shared
    """
    from lakesync.cli.rows_file import check_format, write_rows
    from lakesync.cli.sql_query import run

    moment = None if as_of is None else read_as_of(as_of)
    if to is not None:
        check_format(to)
    with session.out.progress("reading the lake …"):
        lake = _tables(session, shared=shared, changes=changes)
        answer = run(lake, sql, moment, all_columns=all_columns, changes=changes)
    if to is not None:
        write_rows(answer.to_reader(), to)
        done = {"rows": answer.num_rows, "file": str(to)}
        session.out.answer(done, f"{plural(answer.num_rows, 'row')} written to {to}")
    else:
        _show(session, answer)


def _tables(session: Session, *, shared: bool, changes: bool) -> Tables:
    from lakesync.cli.lake import Lake
    from lakesync.cli.shared_lake import shared_lake

    if shared and changes:
        raise UsageFault("gateways share rows, not histories: pass --shared or --changes")
    if shared:
        return shared_lake(session.aws)
    lake = Lake(session.aws, session.connection.gateway)
    must_exist_in_stack(session, lake.names())
    return lake


def _show(session: Session, answer: pa.Table) -> None:
    columns = answer.column_names
    rows = list(zip(*(column.to_pylist() for column in answer.columns), strict=True))
    if session.out.json_lines:
        for row in rows:
            session.out.json(dict(zip(columns, row, strict=True)))
        return
    session.out.table(columns, rows[:_SHOWN_MAX])
    rest = f", {_SHOWN_MAX} shown: see --json, or --to" if len(rows) > _SHOWN_MAX else ""
    session.out.note(f"{plural(len(rows), 'row')}{rest}")
