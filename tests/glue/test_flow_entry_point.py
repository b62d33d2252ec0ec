"""The job of flows as it is deployed: from a PostgreSQL to a MariaDB, by the template's role.

Its arguments and its role are those of ``template.yaml``; DynamoDB, S3 and secrets an emulator that
refuses what a role may not; Spark is started as Glue starts it. Law Y11.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.adapters.database import Position
from lakesync.adapters.ledger_database import values_of
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors.state import state_from
from lakesync.flows.routes import keeper
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.settings import PollSettings, load
from tests.glue.support.deployed_job import JobStack, deployed, ended_run, printed
from tests.support.destinations import SqlDestination, mariadb_dialect, mariadb_url, new_table
from tests.support.gateways import pusher, real_wall_clock
from tests.support.hosts import LOOPBACK
from tests.support.lake import Messages, Objects
from tests.support.machines import definition_of
from tests.support.polling import PollingByHand
from tests.support.repository import ROOT
from tests.support.sources import SqlSource
from tests.support.waiting import DEPLOYED_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator
    from tools.local_stack.databases import Database

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.timeout(DEPLOYED_S)]

GATEWAY, NAME = "acme", "moved"
LARGE, ROWS = 2_000, 9_500
STACK = JobStack(
    "acme-flows", "move_flow", "FlowJob",
    ("BufferTable", "LakeBucket", "FlushQueue", "FlushDlq", "FlowJob", "FlowJobRole"),
    {"JobBounds": f"10000,200000,{LARGE}", "DatabaseHosts": ",".join(LOOPBACK)},
    granted=("states:StartExecution",),
)  # fmt: skip


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """What the job needs of the template, on an emulator that asks each role what it may."""
    with deployed(STACK, tmp_path) as running:
        yield running


@dataclass
class Flow:
    """A flow between two real databases, polled as the function polls it."""

    settings: PollSettings
    source: SqlSource
    destination: SqlDestination
    table: str
    job: str
    machine: str

    def poll(self, lease: int = 0) -> Any:
        """Poll, as long as it is the function's."""
        polls = wiring_connectors.polls(self.settings)
        step = polls.poll(GATEWAY, NAME, lease, lambda: True)
        while step.status == "more":
            step = polls.poll(GATEWAY, NAME, step.lease, lambda: True)
        return step

    def run_of_the_job(self, emulator: Emulator, lease: int) -> tuple[dict[str, Any], Any]:
        """Let the state machine start a run, and wait; returns the run's record and summary."""
        answered = {"gateway": GATEWAY, "name": NAME, "lease": lease, "next": "job"}
        boto3.client("stepfunctions").start_execution(
            stateMachineArn=self.machine, input=json.dumps(answered)
        )
        run = ended_run(self.job)
        said = printed(emulator, run)
        return run, said[-1] if said else None

    @property
    def state(self) -> Any:
        stored = wiring_connectors.connector_store(self.settings).connector(GATEWAY, NAME)
        assert stored is not None
        return state_from(stored.state)


@pytest.fixture
def flow(emulator: Emulator, postgres: Database, mariadb: Database) -> Iterator[Flow]:
    ids = STACK.ids()
    [job] = boto3.client("glue").get_jobs()["Jobs"]
    given = json.loads(job["DefaultArguments"]["--settings"])
    where = {"AWS_REGION": emulator.region, "AWS_ENDPOINT_URL": emulator.endpoint}
    settings = load(PollSettings, given | where)
    source, table = SqlSource(postgres, "postgres", by_time=True), new_table()
    destination = SqlDestination(mariadb_dialect(mariadb))
    boto3.client("secretsmanager").create_secret(
        Name=f"{settings.secret_prefix}{GATEWAY}/warehouse", SecretString=mariadb_url(mariadb)
    )
    # The machine as it is, from where a function has answered.
    definition = definition_of(
        ROOT / "stepfunctions" / "poll_connector.asl.json",
        IngestFunction="none", FlowFunction="none", LakeFlowFunction="none",
            FlowJob=ids["FlowJob"],
    )  # fmt: skip
    machine = boto3.client("stepfunctions").create_state_machine(
        name="polls", roleArn=f"arn:aws:iam::000000000000:role/{ids['FlowJobRole']}",
        definition=json.dumps(definition | {"StartAt": "Following"}),
    )["stateMachineArn"]  # fmt: skip
    may = {"Effect": "Allow", "Action": "states:StartExecution", "Resource": machine}
    boto3.client("iam").put_role_policy(
        RoleName=ids["FlowJobRole"], PolicyName="go-on",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [may]}),
    )  # fmt: skip
    _declare(settings, postgres, source, table)
    yield Flow(settings, source, destination, table, ids["FlowJob"], machine)
    source.close()
    destination.close()


def _declare(settings: PollSettings, postgres: Database, source: SqlSource, table: str) -> None:
    buffer = MemoryBuffer()
    by_hand = PollingByHand(
        pusher(buffer).push, real_wall_clock, rows=buffer,
        store=wiring_connectors.connector_store(settings),
        objects=wiring.objects(settings, settings.lake_bucket),
        secrets=wiring_connectors.secrets(settings, settings.connector_secrets),  # type: ignore[arg-type]
    )  # fmt: skip
    destinations = DestinationAdmin(buffer, Objects(), Messages(), wall_clock=real_wall_clock)
    polled = {
        "host": postgres.host, "port": postgres.port, "database": postgres.database,
        "user": postgres.user, "password": postgres.password, "tls": "off", "settleS": 0,
        "tables": [{"name": source.table, "as": table, "cursorColumn": "changed"}],
    }  # fmt: skip
    by_hand.flow_admin(buffer, destinations).declare(GATEWAY, {
        "name": NAME, "source": {"connector": "postgres", "configuration": polled},
        "destination": {"database": "mysql", "secret": "warehouse"},
        "map": {table: {"rename": {"value": "label"}}},
    })  # fmt: skip


@pytest.mark.law("Y11", "Y5")
def test_large_table_is_copied_by_the_job_and_followed_by_the_function(
    emulator: Emulator, flow: Flow
) -> None:
    source, table = flow.source, flow.table
    # Several of one time, so that stretches end among them.
    source.run(
        f"INSERT INTO {source.table} SELECT n, 'v' || n, timestamptz '2026-01-01' + "  # noqa: S608 - ours
        f"(n / 700) * interval '1 s' FROM generate_series(1, {ROWS}) n"
    )
    handed = flow.poll()
    assert (handed.status, flow.state.rows) == ("large", 1_000)
    assert flow.poll().status == "busy", "nobody else polls it"

    run, summary = flow.run_of_the_job(emulator, handed.lease)
    assert run["JobRunState"] == "SUCCEEDED", run["ErrorMessage"]
    # One page, as of any poll; then stretches while there is one more.
    assert summary == {"gateway": GATEWAY, "name": NAME, "rows": 7_000}

    executions = boto3.client("stepfunctions").list_executions(stateMachineArn=flow.machine)
    assert len(executions["executions"]) == 2, "what is left is the function's, at once"

    source.run(f"UPDATE {source.table} SET value = 'new', changed = now() WHERE id = 17")  # noqa: S608 - ours
    assert [flow.poll().status for _ in range(2)] == ["done", "done"], "the poll's end, and a poll"
    assert (flow.state.rows, flow.state.fault, flow.state.job_ms) == (ROWS + 1, None, 0)
    rows = flow.destination.rows(table, "label")
    assert rows == {str(n): (f"v{n}",) for n in range(1, ROWS + 1)} | {"17": ("new",)}

    database = flow.destination.adapter(keeper(GATEWAY, NAME))
    kept = database.query_deltas_since(table, Position(), ROWS * 2).unwrap().deltas
    assert len({placed.delta.delta_id for placed in kept}) == len(kept) == ROWS + 1
    state = database.rows_of(table, ["9000"]).unwrap()["9000"]
    assert values_of(state) == {"id": 9_000, "label": "v9000", "changed": "2026-01-01T00:00:12Z"}
