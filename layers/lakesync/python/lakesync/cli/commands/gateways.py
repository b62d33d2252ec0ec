"""`lakesync gateways`, `quota` and `checkpoint`: a gateway as a whole.

It is exported, deleted and searched for a row; how much may be pushed to it in a second, which
needs AWS credentials; the checkpoints that new clients start from.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import FAILED, UsageFault
from lakesync.cli.session import Session, audited, command, must_exist_in_stack
from lakesync.core.wording import plural
from lakesync.errors import NotFound, Unavailable
from lakesync.ports import Quota

if TYPE_CHECKING:
    from lakesync.checkpoint.store import Checkpoints, Manifest
    from lakesync.cli.input_output import Cell, Output
    from lakesync.ports import Buffer, ObjectStore, QuotaStore

# --- gateways -------------------------------------------------------------------------------------


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
    session.use(name)
    deletion = _deleted(session, name)
    if with_lake:
        from lakesync.cli.removal import remove_from_lake, tables_shown

        dropping = session.out.progress("dropping the tables in the lake …")
        tables = partial(tables_shown, session.aws, name)
        with audited(session, "dropLakeTables", "", tables), dropping:
            deletion["left"] |= remove_from_lake(session.aws, name)
    if wait and not deletion["proved"]:
        with session.out.progress(f"waiting until {deletion['provableFrom']} …"):
            provable_s = datetime.fromisoformat(deletion["provableFrom"]).timestamp()
            time.sleep(max(provable_s - time.time(), 0) + 1)
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

    session.use(name)
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
    from lakesync.analysis.lake import Lake
    from lakesync.cli.erasure import copies

    session.use(name)
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
    from lakesync.adapters.lake.s3 import S3Objects

    aws = session.aws
    objects = S3Objects(aws.output("LakeBucket"), aws.client("s3"))
    return aws.buffer(aws.output("BufferTable")), objects


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _deleted(session: Session, gateway: str) -> dict[str, Any]:
    rounds = 0
    with session.out.progress(f"deleting {gateway} …"):
        while True:
            deletion = session.admin("DELETE", "gateways")
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


# --- quota ----------------------------------------------------------------------------------------


_WORDS = "; 0 for no limit."


@command
def show_quota(session: Session) -> None:
    """Show the gateway's quota; limits that are not set follow the stack's parameters.

    Example:
      lakesync quota show --gateway acme
    """
    quota = _store(session).quota(session.connection.gateway)
    must_exist_in_stack(session, quota != Quota())
    _tell_quota(session, quota)


@command
def set_(
    session: Session,
    *,
    pushes: Annotated[int | None, typer.Option(min=0, help=f"Pushes a second{_WORDS}")] = None,
    deltas: Annotated[int | None, typer.Option(min=0, help=f"Deltas a second{_WORDS}")] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", min=0, help=f"Bytes a second{_WORDS}")
    ] = None,
) -> None:
    """Set the gateway's quota; limits that are not given follow the stack's parameters.

    Example:
      lakesync quota set --gateway acme --pushes 1000 --bytes 50000000
    """
    quota = Quota(pushes, deltas, size)
    if quota == Quota():
        raise UsageFault("specify how much: --pushes, --deltas or --bytes; `quota reset` undoes it")
    _set(session, quota)


@command
def reset(session: Session) -> None:
    """Remove the gateway's quota, so that the stack's parameters apply again. Safe to repeat.

    Example:
      lakesync quota reset --gateway acme
    """
    must_exist_in_stack(session)
    _set(session, Quota())


def _set(session: Session, quota: Quota) -> None:
    store, gateway = _store(session), session.connection.gateway
    with audited(session, "setQuota", shows=lambda: store.quota(gateway)._asdict()):
        store.set_quota(gateway, quota)
    _tell_quota(session, quota)


def _store(session: Session) -> QuotaStore:
    from lakesync.buffer.admission import ItemQuotas

    return ItemQuotas(session.aws.items("BufferTable"))


def _tell_quota(session: Session, quota: Quota) -> None:
    lines = [
        f"{name} a second: {'stack default' if limit is None else limit or 'no limit'}"
        for name, limit in zip(Quota._fields, quota, strict=True)
    ]
    session.out.answer({"gateway": session.connection.gateway} | quota._asdict(), "\n".join(lines))


# --- checkpoint -----------------------------------------------------------------------------------


_LATEST: Final = "latest"
_BUILD_S_MAX: Final = 900
"""How long any function runs; the build ends in time, and is asked to go on."""


@command
def list_(session: Session) -> None:
    """List the checkpoints of a gateway, the oldest first.

    New clients, and clients whose cursor is void, start from the latest one. Needs AWS credentials.

    Example:
      lakesync checkpoint list
    """
    gateway = session.connection.gateway
    checkpoints = _checkpoints(session)
    manifests = [checkpoints.manifest(gateway, name) for name in checkpoints.ids(gateway)]
    must_exist_in_stack(session, manifests)
    columns: dict[str, Cell] = {
        "checkpoint": "checkpoint", "begun": "begun", "log from": "since", "tables": "tables",
        "rows": "rows", "bytes": "bytes", "epoch": "epoch",
    }  # fmt: skip
    empty = "there is no checkpoint yet: lakesync checkpoint build"
    session.out.listing(map(_summary, manifests), columns, empty=empty)


@command
def show_checkpoint(
    session: Session,
    *,
    checkpoint: Annotated[
        str, typer.Argument(help="An id from `lakesync checkpoint list`, or latest.")
    ] = _LATEST,
) -> None:
    """Show the contents of a checkpoint, table by table. Needs AWS credentials.

    Example:
      lakesync checkpoint show
      lakesync checkpoint show 01930c5a2b300000-000001930c5a2b30 --json
    """
    manifest = _manifest(session, checkpoint)
    rows = [
        (name, content.rows, content.tombstones.count, len(content.chunks), content.parts,
         sum(chunk.size for chunk in content.chunks))
        for name, content in sorted(manifest.tables.items())
    ]  # fmt: skip
    names = ("table", "rows", "tombstones", "chunks", "parts", "bytes")
    if session.out.json_lines:
        tables = [dict(zip(names, row, strict=True)) for row in rows]
        session.out.json({**_summary(manifest), "tables": tables})
        return
    summary = _summary(manifest)
    title = f"{manifest.id}, begun {summary['begun']}: the log continues from {manifest.since}"
    session.out.table(names, rows, title=title)


@command
def build(session: Session) -> None:
    """Build a checkpoint now, and wait until it is done. Safe to repeat.

    A schedule also does this. A build continues where an interrupted one stopped. If nothing has
    changed since the latest checkpoint, no new one is built. Needs AWS credentials.

    Example:
      lakesync checkpoint build
    """
    must_exist_in_stack(session)
    gateway = session.connection.gateway
    rows = 0
    latest = partial(_latest, session)
    with audited(session, "buildCheckpoint", "", latest), session.out.progress("building …"):
        while True:
            done = _invoke(session, {"task": "build", "gateway": gateway})
            rows += int(done.get("rows", 0))
            if done.get("finished"):
                break
            if not done.get("rows"):
                raise Unavailable("no row was written while there was time; build again later")
            session.out.note(f"{plural(rows, 'row')} so far")
    name = done.get("checkpoint")
    session.out.answer(
        {"checkpoint": name or None, "since": done.get("since"), "rows": rows},
        f"{name}: {plural(rows, 'row')} written" if name else "the gateway has no rows to keep",
    )


def _latest(session: Session) -> dict[str, str | None]:
    names = _checkpoints(session).ids(session.connection.gateway)
    return {"latest": names[-1] if names else None}


def _checkpoints(session: Session) -> Checkpoints:
    from lakesync.adapters.lake.s3 import S3Objects
    from lakesync.checkpoint.store import Checkpoints

    aws = session.aws
    return Checkpoints(S3Objects(aws.output("LakeBucket"), aws.client("s3")))


def _manifest(session: Session, checkpoint: str) -> Manifest:
    gateway = session.connection.gateway
    checkpoints = _checkpoints(session)
    names = checkpoints.ids(gateway)
    if checkpoint == _LATEST and names:
        return checkpoints.manifest(gateway, names[-1])
    must_exist_in_stack(session, names)
    if checkpoint not in names:
        listed = ", ".join(names) or "none: lakesync checkpoint build"
        raise NotFound(f"there is no checkpoint {checkpoint[:64]!r}; there are: {listed}")
    return checkpoints.manifest(gateway, checkpoint)


def _summary(manifest: Manifest) -> dict[str, object]:
    from lakesync.checkpoint.store import began_ms_of

    begun = datetime.fromtimestamp(began_ms_of(manifest.id) / 1000, UTC)
    chunks = [chunk for table in manifest.tables.values() for chunk in table.chunks]
    return {
        "checkpoint": manifest.id,
        "begun": begun.isoformat(timespec="seconds"),
        "since": str(manifest.since),
        "tables": len(manifest.tables),
        "rows": sum(table.rows for table in manifest.tables.values()),
        "bytes": sum(chunk.size for chunk in chunks),
        "epoch": manifest.epoch,
    }


def _invoke(session: Session, task: dict[str, str]) -> dict[str, Any]:
    """Invoke the stack's retention function; if it fails, the next try continues there."""
    client = session.aws.client("lambda", answer_s_max=_BUILD_S_MAX)
    name = session.aws.output("RetainFunction")
    answer = client.invoke(FunctionName=name, Payload=json.dumps(task))
    body = answer["Payload"].read()
    if "FunctionError" in answer:
        raise Unavailable(f"the build stopped: {_reason(body)}; build again to continue there")
    answer_body: dict[str, Any] = json.loads(body)
    return answer_body


def _reason(body: bytes) -> str:
    try:
        failure = json.loads(body)
    except ValueError:
        return "it said nothing"
    return (
        str(failure.get("errorMessage", "see its log"))
        if isinstance(failure, dict)
        else "see its log"
    )
