"""`lakesync status`: the backlog at each stage, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.commands.flush import waiting_batches
from lakesync.cli.commands.replay import QUEUES
from lakesync.cli.existence import must_exist
from lakesync.cli.faults import FAILED
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from lakesync.cli.aws import Aws

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
        asked = "?tables=true" if tables else ""
        buffer = session.ask("GET", f"/admin/metrics/{gateway}{asked}")
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
    from lakesync.cli.set_aside import set_aside

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
        depths = [_depth(client, aws.output(output)) for output in (queue, dead)]
        queues.append({"queue": name, "messages": depths[0], "dead": depths[1]})
    return queues


def _depth(client: Any, url: str) -> int:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(_ATTRIBUTES))
    return sum(int(answer["Attributes"].get(name, 0)) for name in _ATTRIBUTES)


def _alarms(aws: Aws) -> list[dict[str, object]]:
    client = aws.client("cloudwatch")
    pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=aws.stack)
    return [
        {"alarm": alarm["AlarmName"], "state": alarm["StateValue"]}
        for page in pages
        for alarm in page.get("MetricAlarms", [])
    ]


def _glue_runs(aws: Aws) -> list[dict[str, object]]:
    runs = aws.client("glue").get_job_runs(JobName=aws.output("GlueJobName"), MaxResults=20)
    latest = sorted(runs["JobRuns"], key=lambda run: run["StartedOn"], reverse=True)
    return [
        {
            "run": run["Id"],
            "state": run["JobRunState"],
            "started": run["StartedOn"].isoformat(timespec="seconds"),
            "seconds": run.get("ExecutionTime", 0),
            "error": run.get("ErrorMessage", ""),
        }
        for run in latest[:_RUNS_SHOWN_MAX]
    ]


def _run_row(run: dict[str, Any]) -> tuple[object, ...]:
    """Return a run's cells: of an error its last line, which says most; --json has all of it."""
    error = run["error"].strip().rpartition("\n")[2]
    return run["run"], run["state"], run["started"], run["seconds"], error[:_ERROR_SHOWN_MAX]


def _wrong(stack: dict[str, Any]) -> bool:
    ringing = any(alarm["state"] == "ALARM" for alarm in stack.get("alarms", []))
    dead = any(queue["dead"] for queue in stack.get("queues", []))
    return ringing or dead or bool(stack.get("claimsSetAside"))


def _table_row(table: str, one: dict[str, Any]) -> tuple[object, ...]:
    """Return a table's cells; a number that is the least has a plus sign."""
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
