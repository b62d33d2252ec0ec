"""`lakesync gateways`: delete or export a whole gateway, or search it for a row."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.audited import audited
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.faults import FAILED, UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import Unavailable

if TYPE_CHECKING:
    from lakesync.cli.output import Output
    from lakesync.ports import Buffer, ObjectStore

_ROUNDS_MAX: Final = 5
"""How often the rest is removed again: a write in flight may have added to it meanwhile."""
_NAME = typer.Argument(help="The gateway's id.")


@command
def delete(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: delete it permanently.")] = False,
    with_lake: Annotated[
        bool,
        typer.Option("--with-lake", help="Also drop its tables in the lake and old versions."),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait about 16 minutes for the proof that nothing is left."),
    ] = False,
) -> None:
    """Delete a gateway permanently: rows, log, checkpoints, batches, clients, rules, schemas.

    Every push and pull is refused with GATEWAY_DELETED at once; clients keep their unsent edits.
    The name cannot be used again: a tombstone keeps late writers out. At the end the command counts
    what is left. The count is a proof once no request from before can still be in flight. Safe to
    repeat and to interrupt.

    Tables in the lake are kept unless --with-lake is given, which needs AWS credentials.

    Example:
      lakesync gateways delete trial --yes --wait
    """
    if not yes:
        raise UsageFault(f"this deletes {name} for good, with all its data: pass --yes")
    session.connection = replace(session.place, gateway=name)
    deletion = _deleted(session, name)
    if with_lake:
        from lakesync.cli.lake_removal import remove_from_lake, tables_shown

        dropping = session.out.progress("dropping the tables in the lake …")
        tables = partial(tables_shown, session.aws, name)
        with audited(session, "dropLakeTables", "", tables), dropping:
            deletion["left"] |= remove_from_lake(session.aws, name)
    if wait and not deletion["proved"]:
        with session.out.progress(f"waiting until {deletion['provableFrom']} …"):
            time.sleep(max(_epoch_s(deletion["provableFrom"]) - time.time(), 0) + 1)
        deletion = {**_deleted(session, name), "left": deletion["left"]}
    _tell(session.out, name, deletion)


@command
def export(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    to: Annotated[Path, typer.Option("--to", help="The folder; it must not hold another export.")],
) -> None:
    """Export a gateway to a folder: rows, schemas and sync rules, as of one stamp.

    Each table is a file of JSON lines for `lakesync push`; schemas and rules are files for
    `schema put` and `rules put`. export.json is written last. Sync rules do not apply: it reads the
    buffer and checkpoints, with AWS credentials. If interrupted, repeat the command to continue.
    Append tables are exported as far back as the log goes; older events are in the lake.

    Example:
      lakesync gateways export trial --to trial-export
    """
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.cli.export import export as write
    from lakesync.gateway.pull import PullService

    session.connection = replace(session.place, gateway=name)
    must_exist_in_stack(session)
    buffer, objects = stores(session)
    pulls = PullService(buffer, wall_clock=now_ms, checkpoints=Checkpoints(objects))

    def on_progress(deltas: int) -> None:
        session.out.note(f"{plural(deltas, 'delta')} read")

    with session.out.progress(f"exporting {name} …"):
        exported = write(name, buffer, pulls, to, on_progress)
    answer = {"gateway": name, "stamp": str(exported.stamp), "tables": exported.tables}
    rows = plural(sum(exported.tables.values()), "row")
    tables = plural(len(exported.tables), "table")
    session.out.answer(answer, f"{to}: {rows} of {tables}, as of stamp {exported.stamp}")


@command
def find_row(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    table: Annotated[str, typer.Argument(help="The row's table.")],
    row: Annotated[str, typer.Argument(help="The row's id.")],
    lake: Annotated[bool, typer.Option(help="Also search the lake's snapshots.")] = True,
) -> None:
    """Count the copies of a row's values: row, log, checkpoints, batches, connectors, lake.

    Use it to prove that a row was erased. Exits with 0 if there are no copies, else with 1. Nothing
    is changed. Needs AWS credentials. docs/operations.md describes how a row is erased, and which
    copies this command cannot reach.

    Example:
      lakesync gateways find-row prod users ann
    """
    from lakesync.cli.lake import Lake
    from lakesync.cli.row_copies import copies

    session.connection = replace(session.place, gateway=name)
    buffer, objects = stores(session)
    tables = Lake(session.aws, name) if lake else None
    with session.out.progress(f"looking for {row} …"):
        counts = copies(name, (table, row), buffer, objects, tables)
    must_exist_in_stack(session, any(counts.values()), tables and tables.names())
    listed = ", ".join(f"{store} {number}" for store, number in counts.items())
    session.out.answer({"table": table, "row": row, "copies": counts}, f"{table} {row}: {listed}")
    if any(counts.values()):
        raise typer.Exit(FAILED)


def stores(session: Session) -> tuple[Buffer, ObjectStore]:
    """Return the stack's buffer, and the bucket of its lake."""
    from lakesync.adapters.lake.s3 import S3Objects

    aws = session.aws
    objects = S3Objects(aws.output("LakeBucket"), aws.client("s3"))
    return aws.buffer(aws.output("BufferTable")), objects


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _deleted(session: Session, gateway: str) -> dict[str, Any]:
    """Request the deletion until nothing is left."""
    rounds = 0
    with session.out.progress(f"deleting {gateway} …"):
        while True:
            deletion = session.ask("DELETE", f"/admin/gateways/{gateway}")
            rounds += deletion["finished"]
            if deletion["gone"]:
                return deletion
            if rounds == _ROUNDS_MAX:
                break
    left = ", ".join(f"{number} {kind}" for kind, number in deletion["left"].items() if number)
    raise Unavailable(f"something still writes to {gateway} ({left}); try again in a minute")


def _tell(out: Output, gateway: str, deletion: dict[str, Any]) -> None:
    counted = ", ".join(f"{kind} {number}" for kind, number in sorted(deletion["left"].items()))
    sentence = f"{gateway} was deleted at {deletion['deletedAt']}; left: {counted}"
    out.answer({"gateway": gateway, **deletion}, sentence)
    if not deletion["proved"]:
        out.note(
            "requests that were in flight may still write for a while: the same command "
            f"is the proof from {deletion['provableFrom']} on (or --wait)"
        )


def _epoch_s(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
