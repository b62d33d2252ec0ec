"""`lakesync checkpoint`: list, show and build checkpoints."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.audited import audited
from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints

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
    if session.out.json_lines:
        for manifest in manifests:
            session.out.json(_summary(manifest))
    elif manifests:
        rows = [tuple(_summary(manifest).values()) for manifest in manifests]
        names = ("checkpoint", "begun", "log from", "tables", "rows", "bytes", "epoch")
        session.out.table(names, rows)
    else:
        session.out.text("there is no checkpoint yet: lakesync checkpoint build")


@command
def show(
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
    from lakesync.checkpoint.manifest import began_ms_of

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
    """Invoke the stack's retention function with a task.

    Raises:
        Unavailable: it failed; the next try continues from where it stopped.
    """
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
