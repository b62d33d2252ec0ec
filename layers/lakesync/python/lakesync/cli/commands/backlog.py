"""`lakesync status`, `flush`, `flushing` and `replay`: what waits at each stage."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import FAILED, UsageFault, objects_under, paged
from lakesync.cli.input_output import read_json
from lakesync.cli.session import Session, audited, command, must_exist, must_exist_in_stack
from lakesync.core.deliveries import CLAIMS
from lakesync.core.wording import plural
from lakesync.errors import Unavailable
from lakesync.ports.stores import STACK

if TYPE_CHECKING:
    from lakesync.analysis.connection import Aws

# --- flush ----------------------------------------------------------------------------------------


_POLL_S: Final = 1.0


@command
def flush(
    session: Session,
    *,
    table: Annotated[
        str | None,
        typer.Option(help="Flush only this table; the others wait for the next flush."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Also wait until the Iceberg tables have it. Needs AWS credentials."
        ),
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the tables.", min=1)] = 300,
) -> None:
    """Flush all commits so far from the buffer to the lake's store now. Safe to repeat.

    A schedule also does this. The Iceberg tables have the data once the Glue job has merged it,
    usually half a minute later.

    Example:
      lakesync flush --wait
      lakesync flush --table todos
    """
    gateway = session.connection.gateway
    must_exist(session)
    with session.out.progress("flushing …"):
        done = session.admin("POST", "flush", table=table)
    sentence = (
        f"flushed {plural(done.get('deltas', 0), 'delta')} in "
        f"{plural(done.get('batches', 0), 'batch')}"
    ) + (f" of {table}" if table else "")
    if wait:
        started = time.monotonic()
        with session.out.progress(f"{sentence}; waiting for the Glue job …"):
            wait_for_lake(session.aws, gateway, timeout)
        done["materialised"] = True
        sentence += f"; the tables hold it after {time.monotonic() - started:.0f} s"
    session.out.answer(done, sentence)


def waiting_batches(aws: Aws, gateway: str | None) -> int:
    """Count the batches that are announced and not yet in the tables: a gateway's, or all."""
    prefix = CLAIMS if gateway is None else f"{CLAIMS}{gateway}/"
    return sum(1 for _ in objects_under(aws, prefix))


def wait_for_lake(aws: Aws, gateway: str, timeout_s: float) -> None:
    """Return once the tables hold all that was announced, or raise `Unavailable`."""
    deadline = time.monotonic() + timeout_s
    while batches := waiting_batches(aws, gateway):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{plural(batches, 'batch')} still wait for the Glue job after {timeout_s:.0f} s; "
                "look at `lakesync status`, and wait again with `lakesync flush --wait`"
            )
        time.sleep(_POLL_S)


# --- flushing -------------------------------------------------------------------------------------


_NOTHING: Final = {"everyS": 0, "bytes": 0, "tables": {}, "flushFormat": "parquet"}


@command
def show(session: Session) -> None:
    """Print when the gateway is flushed, in the form that `lakesync flushing put` accepts.

    A 0 stands for what the stack has: its schedule, or its threshold.

    Example:
      lakesync flushing show
    """
    declared = session.admin("GET", "flushing")
    must_exist(session, declared != _NOTHING)
    session.out.document(declared)


@command
def put(
    session: Session,
    *,
    file: Annotated[
        str,
        typer.Argument(
            help="A JSON file with everyS, bytes, tables, flushFormat; - for standard input."
        ),
    ],
) -> None:
    """Declare when the gateway is flushed. Safe to repeat.

    Few commits wait up to `everyS` seconds, and not only until the schedule's next run. From
    `bytes` on, nothing waits; a table is flushed before the others from its bytes in `tables` on.
    With "flushFormat": "json" people can read the objects of batches. What the file leaves out is
    as the stack has it.

    Example:
      lakesync flushing put flushing.json
      echo '{"everyS": 1800, "tables": {"todos": 200000}}' | lakesync flushing put -
    """
    body = read_json(file)
    saved = session.admin("POST", "flushing", body=body)
    every, size, budgets = saved["everyS"], saved["bytes"], saved["tables"]
    session.out.answer(
        saved,
        f"in force: flushed {f'every {every} s' if every else 'by the schedule'}, "
        f"{f'from {size} bytes on' if size else 'from the threshold of the stack on'}, "
        f"tables with a budget: {len(budgets)}, objects in {saved['flushFormat']}",
    )


# --- replay ---------------------------------------------------------------------------------------


QUEUES: Final = {
    "flush": ("FlushQueueUrl", "FlushDlqUrl"),
    "announce": ("AnnounceQueueUrl", "AnnounceDlqUrl"),
    "deliver": ("DeliverQueueUrl", "DeliverDlqUrl"),
}
"""Each queue's output, and its dead-letter queue's."""
_CLAIMS: Final = "claims"
"""What stands for claims that were set aside, in the place of a queue's name."""
_RECEIVED_MAX: Final = 10
_HIDDEN_S: Final = 60
"""How long a message is ours while it is moved."""


@command
def replay(
    session: Session,
    *,
    queue: Annotated[str, typer.Argument(help="flush, announce, deliver or claims.")],
    limit: Annotated[int | None, typer.Option(help="Move at most this many.", min=1)] = None,
    look: Annotated[bool, typer.Option("--look", help="Print them; move nothing.")] = False,
) -> None:
    """Retry failed work: move dead letters back to their queue, or put back claims set aside.

    flush, announce and deliver are queues, whose dead letters are moved back. claims are batches of
    this gateway that the Glue job could not apply. Each message is written before it is deleted, so
    it may be delivered twice but is never lost; handlers are idempotent. Safe to repeat. Needs AWS
    credentials.

    Example:
      lakesync replay announce --look
      lakesync replay announce
    """
    if queue == _CLAIMS:
        _replay_claims(session, limit, look=look)
        return
    if queue not in QUEUES:
        raise UsageFault(f"there is no queue {queue[:20]!r}: use {', '.join(QUEUES)} or {_CLAIMS}")
    source, dead = (session.aws.output(name) for name in QUEUES[queue])
    client = session.aws.client("sqs")
    if look:
        bodies = _look(client, dead, limit or _RECEIVED_MAX)
        for body in bodies:
            session.out.json({"queue": queue, "body": body})
        session.out.note(f"{plural(len(bodies), 'message')} shown, none moved")
        return
    waiting = partial(_waiting, client, dead)
    with (
        audited(session, "replayQueue", queue, waiting, gateway=STACK),
        session.out.progress(f"moving messages of {queue} …"),
    ):
        moved = move(client, dead, source, limit)
    session.out.answer(
        {"queue": queue, "moved": moved}, f"{queue}: {plural(moved, 'message')} moved back"
    )


def _waiting(client: Any, dead: str) -> dict[str, str]:
    wanted = ["ApproximateNumberOfMessages"]
    counted = client.get_queue_attributes(QueueUrl=dead, AttributeNames=wanted)["Attributes"]
    return {"waiting": counted[wanted[0]]}


def _replay_claims(session: Session, limit: int | None, *, look: bool) -> None:
    from itertools import islice

    from lakesync.cli.lake_tables import claims_shown, put_back, set_aside

    aws, gateway = session.aws, session.connection.gateway
    claims = list(islice(set_aside(aws, gateway), limit))
    must_exist_in_stack(session, claims)
    if look:
        for claim in claims:
            session.out.json(claim)
        session.out.note(f"{plural(len(claims), 'claim')} shown, none moved")
        return
    waiting = partial(claims_shown, aws, gateway)
    with audited(session, "replayClaims", plural(len(claims), "claim"), waiting):
        moved = put_back(aws, [claim["claim"] for claim in claims])
    session.out.answer({"queue": _CLAIMS, "moved": moved}, f"{plural(moved, 'claim')} put back")


def move(client: Any, dead: str, source: str, limit: int | None = None) -> int:
    """Move messages from one queue to another until there is none, or the limit is reached.

    Not by ``StartMessageMoveTask``: it moves everything, one task at a time, and says nothing of
    a message that it could not move.
    """
    from lakesync.adapters.lake.s3 import message_of

    moved = 0
    while limit is None or moved < limit:
        wanted = _RECEIVED_MAX if limit is None else min(_RECEIVED_MAX, limit - moved)
        messages = _receive(client, dead, wanted, _HIDDEN_S)
        if not messages:
            break
        for message in messages:
            client.send_message(
                QueueUrl=source,
                **message_of(message["Body"]),
                MessageAttributes=_attributes(message),
            )
            client.delete_message(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"])
            moved += 1
    return moved


def _look(client: Any, dead: str, limit: int) -> list[str]:
    messages = _receive(client, dead, min(limit, _RECEIVED_MAX), _HIDDEN_S)
    for message in messages:
        client.change_message_visibility(
            QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    return [message["Body"] for message in messages]


def _receive(client: Any, url: str, count: int, hidden_s: int) -> list[dict[str, Any]]:
    answer = client.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=count,
        VisibilityTimeout=hidden_s,
        WaitTimeSeconds=1,
        MessageAttributeNames=["All"],
    )
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def _attributes(message: dict[str, Any]) -> dict[str, Any]:
    kept = ("DataType", "StringValue", "BinaryValue")
    return {
        name: {key: value[key] for key in kept if key in value}
        for name, value in message.get("MessageAttributes", {}).items()
    }


# --- status ---------------------------------------------------------------------------------------


_RUNS_SHOWN_MAX: Final = 3
_ERROR_SHOWN_MAX: Final = 120
_ATTRIBUTES: Final = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@command
def status(
    session: Session,
    *,
    tables: Annotated[
        bool, typer.Option("--tables", help="Also count what waits, and the rows, of each table.")
    ] = False,
) -> None:
    """Show the backlog of the buffer, the queues and the lake's store, and what is wrong.

    Without --stack it shows only the buffer; with it, it needs AWS credentials. Exits with 1 if an
    alarm is active, or if there are dead letters or claims set aside.

    Example:
      lakesync status
      lakesync status --tables
    """
    gateway = session.connection.gateway
    with session.out.progress("asking …"):
        buffer = session.admin("GET", "metrics", tables=tables)
        must_exist(session, buffer["headHlc"] != "0")
        stack = _stack(session, gateway) if session.connection.stack else {}
    if session.out.json_lines:
        session.out.json({"buffer": buffer, **stack})
    else:
        _show(session, buffer, stack)
    if _wrong(stack):
        raise typer.Exit(FAILED)


def sockets_of(session: Session) -> str:
    """Return where clients open WebSockets; empty where the stack has none."""
    return session.connection.sockets or session.aws.outputs.get("SocketUrl", "")


def _stack(session: Session, gateway: str) -> dict[str, Any]:
    from lakesync.cli.lake_tables import set_aside

    aws = session.aws
    return {
        "sockets": sockets_of(session),
        "waitingBatches": waiting_batches(aws, gateway),
        "waitingBatchesOfAll": waiting_batches(aws, None),
        "claimsSetAside": list(set_aside(aws, gateway)),
        "queues": _queues(aws),
        "alarms": _alarms(aws),
        "glueRuns": _glue_runs(aws),
    }


def _queues(aws: Aws) -> list[dict[str, object]]:
    client = aws.client("sqs")
    queues: list[dict[str, object]] = []
    for name, (queue, dead) in QUEUES.items():
        depths = [depth_of(client, aws.output(output)) for output in (queue, dead)]
        queues.append({"queue": name, "messages": depths[0], "dead": depths[1]})
    return queues


def depth_of(client: Any, url: str) -> int:
    """Return about how many messages a queue has, those in flight too."""
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(_ATTRIBUTES))
    return sum(int(answer["Attributes"].get(name, 0)) for name in _ATTRIBUTES)


def _alarms(aws: Aws) -> list[dict[str, object]]:
    named = {"AlarmNamePrefix": aws.stack}
    alarms = paged(aws.client("cloudwatch"), "describe_alarms", "MetricAlarms", **named)
    return [{"alarm": alarm["AlarmName"], "state": alarm["StateValue"]} for alarm in alarms]


def _glue_runs(aws: Aws) -> list[dict[str, object]]:
    return [
        {
            "run": run["Id"],
            "state": run["JobRunState"],
            "started": run["StartedOn"].isoformat(timespec="seconds"),
            "seconds": run.get("ExecutionTime", 0),
            "error": run.get("ErrorMessage", ""),
        }
        for run in latest_runs(aws)[:_RUNS_SHOWN_MAX]
    ]


def latest_runs(aws: Aws) -> list[dict[str, Any]]:
    """Return the runs of the job that merges batches, latest first."""
    runs = aws.client("glue").get_job_runs(JobName=aws.output("GlueJobName"), MaxResults=20)
    return sorted(runs["JobRuns"], key=lambda run: run["StartedOn"], reverse=True)


def _run_row(run: dict[str, Any]) -> tuple[object, ...]:
    """Return a run's cells: of an error its last line, which says most; --json has all of it."""
    error = run["error"].strip().rpartition("\n")[2]
    return run["run"], run["state"], run["started"], run["seconds"], error[:_ERROR_SHOWN_MAX]


def _wrong(stack: dict[str, Any]) -> bool:
    ringing = any(alarm["state"] == "ALARM" for alarm in stack.get("alarms", []))
    dead = any(queue["dead"] for queue in stack.get("queues", []))
    return ringing or dead or bool(stack.get("claimsSetAside"))


def _table_row(table: str, one: dict[str, Any]) -> tuple[object, ...]:
    """Return a table's cells; a plus sign stands behind a number that is the least."""
    waiting = "+" if one.get("moreUnflushed") else ""
    rows = f"{one['rows']:,}{'+' if one.get('moreRows') else ''}" if "rows" in one else None
    return (
        table, f"{one['unflushedBytes']:,}{waiting}", f"{one['unflushedDeltas']:,}{waiting}", rows
    )  # fmt: skip


def _show(session: Session, buffer: dict[str, Any], deployed: dict[str, Any]) -> None:
    out = session.out
    out.text(
        f"gateway {buffer['gateway']}: {buffer['unflushedBytes']:,} bytes wait to be flushed, the "
        f"oldest for {buffer['unflushedAgeMs'] / 1000:.0f} s; tables with a schema: "
        f"{', '.join(buffer.get('tables', [])) or 'none'}"
    )
    if "byTable" in buffer:
        out.table(
            ("table", "bytes waiting", "deltas waiting", "rows"),
            [_table_row(table, one) for table, one in buffer["byTable"].items()],
        )
    if not deployed:
        out.note("pass --stack to see its queues, alarms and Glue runs")
        return
    if deployed["sockets"]:
        out.text(f"sockets: {deployed['sockets']}")
    every = deployed["waitingBatchesOfAll"]
    out.text(
        f"lake: {plural(deployed['waitingBatches'], 'batch')} of {buffer['gateway']} wait for the "
        f"Glue job, {every:,} of all gateways"
    )
    queues = [tuple(row.values()) for row in deployed["queues"]]
    out.table(("queue, of all gateways", "messages", "dead"), queues)
    announced = next(row["messages"] for row in deployed["queues"] if row["queue"] == "announce")
    if announced > every:
        out.note(
            f"announce: {plural(announced, 'message')} for {plural(every, 'batch')} that wait: the "
            "others are of batches that the lake has"
        )
    if deployed["glueRuns"]:
        columns = ("Glue run", "state", "started", "s", "error")
        out.table(columns, [_run_row(run) for run in deployed["glueRuns"]])
    ringing = [alarm["alarm"] for alarm in deployed["alarms"] if alarm["state"] == "ALARM"]
    out.text(
        f"alarms: {', '.join(ringing)}"
        if ringing
        else f"alarms: none of {len(deployed['alarms'])} rings"
    )
    for claim in deployed["claimsSetAside"]:
        out.note(f"set aside: {claim['claim']}: {claim['reason']}")
    given_up = [queue["queue"] for queue in deployed["queues"] if queue["dead"]]
    for name in [*given_up, *(["claims"] if deployed["claimsSetAside"] else [])]:
        out.note(f"see what is wrong, then: lakesync replay {name}")
