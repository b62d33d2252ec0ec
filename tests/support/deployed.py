"""Tests of the deployed stack: a tenant of their own each, and what the lake must hold.

A `Tenant` pushes over HTTP and remembers every delta, so that `expected` can say, by the naive
oracle, which rows there must be, wherever they are looked for.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx

from lakesync.analysis.connection import Aws, Connection
from lakesync.analysis.lake import ROW_ID, Lake
from lakesync.buffer import item_format
from lakesync.cli.commands.backlog import waiting_batches
from lakesync.cli.session import sign
from lakesync.client import HttpTransport
from lakesync.client.gateway_http import trusted
from lakesync.core.clock import STAMP_MAX, HybridLogicalClock
from lakesync.core.config import FLUSH_BYTES_MIN
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull, Push
from lakesync.wire.records import decode_records
from tests.support.oracle import expected_row
from tests.support.waiting import DEPLOYED_S, answered

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from lakesync.analysis.past import AsOf
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from tools.local_stack.stack import Stack


def reconfigure(aws: Aws, function: str, **changes: Any) -> None:
    """Change how a function is configured, and wait until it is.

    Until then it can be neither published nor changed, and the doctor does not find it well.
    """
    client = aws.client("lambda")
    client.update_function_configuration(FunctionName=function, **changes)
    client.get_waiter("function_updated_v2").wait(FunctionName=function)


AT_WORK = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})
_JOB_FIELDS = (
    "Role",
    "Command",
    "DefaultArguments",
    "GlueVersion",
    "WorkerType",
    "NumberOfWorkers",
    "Timeout",
    "MaxRetries",
)
_JOB_NUMBERS = ("NumberOfWorkers", "Timeout", "MaxRetries")

Rows = dict[str, dict[str, Any]]


@dataclass
class Tenant:
    """A gateway that nobody else uses, on the deployed stack."""

    stack: Stack
    gateway: str = field(default_factory=lambda: f"t{uuid4().hex[:12]}")
    deltas: list[Delta] = field(default_factory=list)
    clock: HybridLogicalClock = field(default_factory=HybridLogicalClock)

    # --- HTTP -------------------------------------------------------------------------------------

    def token(
        self, client: str = "c1", *, role: str = "client", ttl_s: int = 600, **claims: object
    ) -> str:
        """Sign a token with the stack's secret; claims may be wrong on purpose."""
        own = {"sub": client, "gw": self.gateway, "role": role} | claims
        return sign(own, ttl_s, self.stack.jwt_secret, int(time.time()))

    def call(
        self, method: str, path: str, *, token: str | None = None, **request: Any
    ) -> httpx.Response:
        """Ask the API; without a token none is sent."""
        headers = dict(request.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.request(
            method,
            self.stack.http + path,
            headers=headers,
            timeout=DEPLOYED_S,
            verify=trusted(),
            **request,
        )

    def transport(self, client: str = "c1") -> HttpTransport:
        """Return a client's way to the gateway; close it."""
        return HttpTransport(self.stack.http, self.gateway, token=lambda: self.token(client))

    # --- deltas -----------------------------------------------------------------------------------

    def make(
        self,
        op: Op,
        row: str,
        columns: dict[str, object] | None = None,
        *,
        table: str = "todos",
        client: str = "c1",
    ) -> Delta:
        hlc = self.clock.now(int(time.time() * 1000))
        return make_delta(op, table, row, columns, client_id=client, hlc=hlc)

    def push(self, deltas: Iterable[Delta], *, atomic: bool = False) -> PushReceipt:
        made = list(deltas)
        client = made[0].client_id
        with self.transport(client) as transport:
            receipt = transport.push(Push(client, tuple(enumerate(made)), atomic=atomic))
        self.deltas += made
        return receipt

    def pull(self, client: str = "c1", since: int = 0) -> list[Delta]:
        """Pull every page, up to now: a page of a busy gateway may otherwise end 250 ms back."""
        received: list[Delta] = []
        with self.transport(client) as transport:
            while True:
                page = transport.pull(Pull(client, since, 1_000, at_least=STAMP_MAX))
                received += [delta for run in page.records for delta in decode_records(run)]
                since = page.cursor
                if not page.has_more:
                    return received

    def flush(self) -> dict[str, Any]:
        answer = self.call("POST", f"/admin/flush/{self.gateway}", token=self.token(role="admin"))
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    # --- the lake ---------------------------------------------------------------------------------

    @property
    def aws(self) -> Aws:
        return aws_of(self.stack, self.gateway)

    def waiting(self) -> int:
        """Count the batches that are announced and not in the tables yet."""
        return waiting_batches(self.aws, self.gateway)

    def table(self, name: str = "todos", wanted: AsOf | None = None) -> pa.Table:
        return Lake(self.aws, self.gateway).read(name, wanted)

    def lake_rows(self, name: str = "todos", wanted: AsOf | None = None) -> Rows:
        """Return an Iceberg table's rows by row id; columns that are null are left out."""
        return {
            row.pop(ROW_ID): {column: value for column, value in row.items() if value is not None}
            for row in self.table(name, wanted).to_pylist()
        }

    def expected(self, name: str = "todos") -> Rows:
        """Return what the oracle makes of everything that was pushed.

        Without a schema the lake holds each value as its canonical JSON text.
        """
        by_row: dict[str, list[Delta]] = defaultdict(list)
        for delta in self.deltas:
            if delta.table == name:
                by_row[delta.row_id].append(delta)
        rows = {row: expected_row(deltas) for row, deltas in by_row.items()}
        return {
            row: {column: value.decode() for column, value in columns.items()}
            for row, columns in rows.items()
            if columns is not None
        }


def quick_to_flush(tenant: Tenant) -> None:
    """Have a tenant flushed as soon as the least threshold waits."""
    answer = tenant.call(
        "POST", f"/admin/flushing/{tenant.gateway}", token=tenant.token("ops", role="admin"),
        json={"bytes": FLUSH_BYTES_MIN},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def unflushed(tenant: Tenant) -> int:
    """Return how many bytes of a tenant's log wait to be flushed."""
    path = f"/admin/metrics/{tenant.gateway}"
    answer = tenant.call("GET", path, token=tenant.token("ops", role="admin"))
    return int(answer.json()["unflushedBytes"])


def look_again(tenant: Tenant, connector: str) -> None:
    """Let a connector's next poll look at its source's columns, as after a quarter of an hour."""
    dynamo, table = tenant.aws.client("dynamodb"), tenant.aws.output("BufferTable")
    key = {"pk": {"S": item_format.connector_pk(tenant.gateway)}, "sk": {"S": connector}}
    state = json.loads(dynamo.get_item(TableName=table, Key=key)["Item"]["ps"]["B"])
    dynamo.update_item(
        TableName=table, Key=key, UpdateExpression="SET ps = :ps",
        ExpressionAttributeValues={":ps": {"B": json.dumps(state | {"looked_ms": 0}).encode()}},
    )  # fmt: skip


def changes_reported(tenant: Tenant) -> list[tuple[str, str, str]]:
    """Return the changes of sources' schemas that were recorded: connector, column, change."""
    answer = tenant.call(
        "GET", f"/admin/audit/{tenant.gateway}?operation=sourceSchemaChanged",
        token=tenant.token("ops", role="admin"),
    )  # fmt: skip
    return [
        (record["target"], change["column"], change["change"])
        for record in answer.json()["records"]
        for change in record["after"]["changes"]
    ]


@cache
def aws_of(stack: Stack, gateway: str = "none") -> Aws:
    """Return the AWS side of a stack, with the outputs that it has when they are first asked for.

    Whoever deploys it with others clears the cache.
    """
    return Aws(
        Connection(
            gateway=gateway,
            url=stack.http,
            stack=stack.stack,
            endpoint=stack.endpoint,
            region=stack.region,
            jwt_secret=stack.jwt_secret,
            emulated=True,
        )
    )


class Glue:
    """A job on the deployed stack, the materialiser's unless another is named."""

    def __init__(self, aws: Aws, output: str = "GlueJobName") -> None:
        self.job = aws.output(output)
        self.client = aws.client("glue")

    def runs(self) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.client.get_job_runs(JobName=self.job, MaxResults=200)[
            "JobRuns"
        ]
        return sorted(runs, key=lambda run: run["StartedOn"], reverse=True)

    def allow_at_once(self, runs: int) -> None:
        job = self.client.get_job(JobName=self.job)["Job"]
        kept = {name: job[name] for name in _JOB_FIELDS if name in job}
        # The emulator keeps a template's numbers as the text that parameters are.
        numbers = {name: int(kept[name]) for name in _JOB_NUMBERS if name in kept}
        update = {**kept, **numbers, "ExecutionProperty": {"MaxConcurrentRuns": runs}}
        self.client.update_job(JobName=self.job, JobUpdate=update)

    def start(self) -> str:
        """Start a run; returns its id."""
        run_id: str = self.client.start_job_run(JobName=self.job)["JobRunId"]
        return run_id

    def ended(self, run_id: str) -> dict[str, Any]:
        """Wait for a run's end; returns its record."""
        deadline = time.monotonic() + DEPLOYED_S
        while True:
            run: dict[str, Any] = self.client.get_job_run(JobName=self.job, RunId=run_id)["JobRun"]
            if run["JobRunState"] not in AT_WORK:
                return run
            assert time.monotonic() < deadline, (
                f"the run did not end: {json.dumps(run, default=str)}"
            )
            time.sleep(0.25)

    def settle(self) -> None:
        """Wait until no run is at work."""
        for run in self.runs():
            if run["JobRunState"] in AT_WORK:
                self.ended(run["Id"])

    def materialise(self) -> dict[str, Any]:
        """Do one run to its end, which must be a success."""
        run = self.ended(self.start())
        assert run["JobRunState"] == "SUCCEEDED", run.get("ErrorMessage")
        return run


def executed(aws: Aws, output: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Execute a state machine, as its schedule does; returns the execution at its end.

    Args:
        output: the stack's output that names the machine.
    """
    client = aws.client("stepfunctions")
    request = {"stateMachineArn": aws.output(output), "input": json.dumps(given or {})}
    execution = client.start_execution(**request)["executionArn"]
    deadline = time.monotonic() + DEPLOYED_S
    while True:
        described: dict[str, Any] = client.describe_execution(executionArn=execution)
        if described["status"] != "RUNNING":
            return described
        assert time.monotonic() < deadline, described
        time.sleep(0.2)


def polls_ended(tenant: Tenant, name: str) -> None:
    """Wait until all polls of a connector or flow that were begun have ended, with success."""
    wanted = {"gateway": tenant.gateway, "name": name}
    steps, machine = tenant.aws.client("stepfunctions"), tenant.aws.output("PollStateMachineArn")

    def polls() -> list[str]:
        every = steps.list_executions(stateMachineArn=machine)["executions"]
        shown = [steps.describe_execution(executionArn=one["executionArn"]) for one in every]
        return [
            one["status"] for one in shown if json.loads(one["input"]).items() >= wanted.items()
        ]

    statuses = answered(polls, lambda statuses: statuses and "RUNNING" not in statuses)
    assert set(statuses) == {"SUCCEEDED"}, statuses
