"""`lakesync tables`: which shard each table is in; and the removal of tables."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural


@command
def list_(session: Session) -> None:
    """List the tables that are not in the default shard, each with its shard.

    Example:
      lakesync tables list
    """
    answer = session.ask("GET", f"/admin/tables/{session.connection.gateway}")
    must_exist(session, answer["tables"])
    if session.out.json_lines:
        session.out.json(answer)
    elif answer["tables"]:
        session.out.table(("table", "shard"), list(answer["tables"].items()))
    else:
        session.out.text("all tables are in the default shard")


@command
def place(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    shard: Annotated[str, typer.Argument(help="The shard; main is the default one.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it costs, and change nothing.")
    ] = False,
) -> None:
    """Move a table to a shard. Tables of one shard are read together.

    Writers need no shards, because they choose lanes automatically. A separate shard is worthwhile
    for a table with many commits that most clients may not see: they do not read its log then. It
    costs other clients a read unit per pull, however many shards are in use, and two to four write
    units for a push that also touches another shard. With more than five shards the push of a small
    edit costs more as well: up to six write units rather than 4.3 with twenty. If only the default
    one is in use, shards cost nothing. Safe to repeat.

    Example:
      lakesync tables place events telemetry --dry-run
      lakesync tables place events telemetry
    """
    body = {"table": table, "shard": shard, "dryRun": dry_run}
    answer = session.ask("POST", f"/admin/tables/{session.connection.gateway}", body)
    units, writes = answer["pullReadUnits"], answer["pushWriteUnits"]
    verb = "would be" if dry_run else "is"
    session.out.answer(
        answer,
        f"{table} {verb} in shard {shard}, of {plural(len(answer['shards']), 'shard')}; "
        f"while all are in use, a pull that brings nothing reads {plural(units['after'], 'unit')} "
        f"at most ({units['before']} before); a push of one small edit of it writes some "
        f"{writes['after']:g} units ({writes['before']:g} before), and one that also touches "
        "another shard writes two to four more",
    )


@command
def remove(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether it may be done, and change nothing.")
    ] = False,
) -> None:
    """Remove a table of which nothing is left in the gateway, so that it counts no more.

    For tables that were declared by mistake or in bad faith: a gateway has at most 500 tables, and
    a user declares at most 20 that no schema names. The table has no schema, no rows, no changes in
    the log, and the sync rules do not name it. To get there, delete its rows, and wait for
    retention to forget the deletions. Its data in the lake and in destinations stays.

    Example:
      lakesync tables remove scratch --dry-run
      lakesync tables remove scratch
    """
    query = "?dryRun=true" if dry_run else ""
    path = f"/admin/tables/{session.connection.gateway}/{quote(table, safe='')}{query}"
    answer = session.ask("DELETE", path)
    session.out.answer(answer, f"{table} {'may be' if dry_run else 'is'} removed")
