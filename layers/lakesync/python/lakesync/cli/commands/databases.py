"""`lakesync databases`: copy a gateway's tables from one database to another, and compare them."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.copying import Compared, Copied
    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.cli.output import Output
    from lakesync.materialise.opening import OpenedDatabase

_SOURCE = typer.Option(
    "--from-env", metavar="NAME", help="The environment variable with the source's URL."
)
_TARGET = typer.Option(
    "--to-env", metavar="NAME", help="The environment variable with the target's URL."
)
_TABLES = typer.Option("--table", help="Only this table. Repeatable.")


@command
def copy(
    session: Session,
    *,
    source: Annotated[str, _SOURCE],
    target: Annotated[str, _TARGET],
    table: Annotated[list[str] | None, _TABLES] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare row counts and checksums afterwards.")
    ] = True,
) -> None:
    """Copy the tables of a gateway from one database to another.

    The copy continues from the target's position: repeat it after any failure, or to follow a
    growing source. Exits with 1 if the databases differ afterwards. URLs are read from environment
    variables, so that no password is in a command: postgresql://user:password@host/database,
    mysql://…, mariadb://…, bigquery://project/dataset, s3://bucket/folder, or a kind that an
    installed package adds.

    Example:
      lakesync databases copy --gateway acme --from-env OLD_URL --to-env NEW_URL
    """
    from lakesync.adapters.copying import copy_table

    with closing(_opened(session, source)) as left, closing(_opened(session, target)) as right:
        for name in _chosen(left, table):
            with session.out.progress(f"copying {name}"):
                copied = copy_table(
                    left, right, name, on_progress=lambda done: _note(session.out, done)
                ).unwrap()
            session.out.answer(
                {"table": name, "deltas": copied.deltas, "until": str(copied.until)},
                f"{name}: {plural(copied.deltas, 'delta')} copied",
            )
        if verify:
            _compare(session, left, right, table)


@command
def compare(
    session: Session,
    *,
    source: Annotated[str, _SOURCE],
    target: Annotated[str, _TARGET],
    table: Annotated[list[str] | None, _TABLES] = None,
) -> None:
    """Compare a gateway's rows in two databases, by count and checksum; exit with 1 if they differ.

    Example:
      lakesync databases compare --gateway acme --from-env OLD_URL --to-env NEW_URL
    """
    with closing(_opened(session, source)) as left, closing(_opened(session, target)) as right:
        _compare(session, left, right, table)


def _compare(
    session: Session, left: DatabaseAdapter, right: DatabaseAdapter, tables: Sequence[str] | None
) -> None:
    from lakesync.adapters.copying import compare_table

    different: list[Compared] = []
    for name in _chosen(left, tables):
        with session.out.progress(f"comparing {name}"):
            compared = compare_table(left, right, name).unwrap()
        if not compared.is_equal:
            different.append(compared)
        session.out.answer(
            {
                "table": name,
                "rows": compared.rows,
                "checksum": compared.checksum,
                "equal": compared.is_equal,
                "difference": compared.difference,
            },
            f"{name}: {plural(compared.rows, 'row')}, "
            + ("equal" if compared.is_equal else f"different from row {compared.difference!r} on")
            + f" (SHA-256 {compared.checksum[:16]}…)",
        )
    if different:
        raise Conflict(
            f"{plural(len(different), 'table')} not equal, first {different[0].table}; copy again "
            "while nobody writes to either database"
        )


def _opened(session: Session, variable: str) -> OpenedDatabase:
    from lakesync.materialise.opening import opened_database

    url = os.environ.get(variable)
    if not url:
        raise UsageFault(f"set {variable} to the database's URL")
    return opened_database(url, session.connection.gateway)


def _chosen(source: DatabaseAdapter, tables: Sequence[str] | None) -> Sequence[str]:
    there = source.tables().unwrap()
    unknown = sorted(set(tables or ()) - there.keys())
    if unknown:
        raise NotFound(f"the source has no table {unknown[0]}; it has {', '.join(there) or 'none'}")
    return tables or list(there)


def _note(out: Output, copied: Copied) -> None:
    out.note(f"{copied.table}: {plural(copied.deltas, 'delta')} so far")
