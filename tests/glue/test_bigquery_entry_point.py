"""The BigQuery job as it is deployed: the bundle, started by the function, by the template's role.

Its arguments and its role are those of ``template.yaml``, DynamoDB, S3, SQS and secrets an emulator
that refuses what a role may not, and Spark is started as Glue starts it. Law D17.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.core.deliveries import GATHER_MS, delivery_place
from lakesync.core.schema import schema_to_json
from lakesync.runtime import deliver, wiring
from lakesync.runtime.settings import DeliverSettings
from lakesync.testing.database_contract import schema
from tests.delivery.world import World
from tests.glue.support.deployed_job import JobStack, deployed, ended_run, printed, rights
from tests.support.bigquery import DATASET, bigquery_destination
from tests.support.builders import at_ms, insert, update
from tests.support.destinations import (
    new_table,
)
from tests.support.gateways import GATEWAY, GivenTime, administrator, pusher, real_wall_clock
from tests.support.waiting import DEPLOYED_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.delta import Delta
    from lakesync.delivery.deliverer import Deliverer
    from tests.support.bigquery import BigQueryDestination
    from tests.support.lake import Life
    from tools.local_stack.aws_emulator import Emulator
    from tools.local_stack.bigquery import BigQueryServer

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.timeout(DEPLOYED_S)]

LARGE = 4
"""From so many deltas on a table is the job's."""
STACK = JobStack(
    "acme-sync", "materialise_bigquery", "BigQueryJob",
    ("BufferTable", "LakeBucket", "DeliverQueue", "DeliverDlq", "BigQueryJob", "BigQueryJobRole"),
    {"JobBounds": f"10000,{LARGE},1000000"},
)  # fmt: skip
SECRETS = f"{STACK.name}/destinations/{GATEWAY}/"


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """What the job needs of the template, on an emulator that asks each role what it may."""
    with deployed(STACK, tmp_path) as running:
        yield running


class Deployed(World):
    """A gateway on those resources, whose table goes to a destination of its own in BigQuery."""

    def __init__(self, emulator: Emulator, table: str, time_: GivenTime) -> None:
        super().__init__()
        self.table, self.emulator = table, emulator
        self.place = f"deliveries/{GATEWAY}/{table}/{table}/"
        self.ids = STACK.ids()
        self.settings = DeliverSettings(
            region=emulator.region,
            endpoint=emulator.endpoint,
            buffer_table=self.ids["BufferTable"],
            lake_bucket=self.ids["LakeBucket"],
            deliver_queue_url=self.ids["DeliverQueue"],
            secret_prefix=f"{STACK.name}/destinations/",
            bigquery_job=self.ids["BigQueryJob"],
            bigquery_job_deltas=LARGE,
        )
        self.time = time_
        self.buffer = wiring.buffer(self.settings)  # type: ignore[assignment]
        self.objects = wiring.objects(self.settings, self.settings.lake_bucket)  # type: ignore[assignment]
        self.admin = administrator(self.buffer, time_=self.time)
        self.pushes = pusher(self.buffer, time_=self.time)
        self.admin.register_schema(GATEWAY, schema_to_json(schema(table, {"n": "integer"})))
        self.declare(table, kind="bigquery", tables=[table])
        self.follow()

    def deliverer(self, life: Life | None = None) -> Deliverer:
        """Return the function's, as the stack has it."""
        assert life is None
        return deliver.deliverer(self.settings)

    def follow(self) -> None:
        """Let the function work on what waits, after as long as it gathers at the most."""
        self.time.now_ms += GATHER_MS
        for place in (f"deliveries/{GATEWAY}/{self.table}/", self.place):
            self.deliverer().deliver(delivery_place(place))

    def put(self, *deltas: Delta) -> None:
        self.push(*deltas)
        self.flush()

    def run_of_the_job(self) -> dict[str, Any]:
        """Wait for the end of the latest run, which somebody else started; returns its record."""
        run = ended_run(self.settings.bigquery_job)
        self.time.now_ms = real_wall_clock()  # the job goes by the machine's clock
        return run

    def printed(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what a run said, in order; Spark says more."""
        return printed(self.emulator, run)

    def announced(self) -> list[str]:
        """Take from the queue what the function was told."""
        client, url = boto3.client("sqs"), self.settings.deliver_queue_url
        messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for one in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        return [json.loads(one["Body"])["claim"] for one in messages]


@pytest.fixture
def dataset(bigquery: BigQueryServer) -> Iterator[BigQueryDestination]:
    dataset = bigquery_destination(bigquery)
    yield dataset
    dataset.close()


@pytest.fixture
def world(
    emulator: Emulator, bigquery: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> Deployed:
    url = f"bigquery://{bigquery.project}/{DATASET}?endpoint={bigquery.endpoint}"
    table = new_table()
    secrets = boto3.client("secretsmanager")
    secrets.create_secret(Name=SECRETS + table, SecretString=json.dumps({"url": url}))
    given = GivenTime(real_wall_clock() - 3_600_000)
    monkeypatch.setattr(wiring, "wall_clock", given.wall_clock)
    return Deployed(emulator, table, given)


def some(world: Deployed, first: int = 1) -> list[Delta]:
    """Return as many inserts of rows as are the job's."""
    made = partial(insert, table=world.table)
    return [made(f"r{n}", at=at_ms(n), n=n) for n in range(first, first + LARGE)]


@pytest.mark.law("D17")
def test_function_starts_the_job_and_the_job_reports_its_deliveries(
    world: Deployed, dataset: BigQueryDestination
) -> None:
    world.put(*some(world))
    world.put(update("r1", at=at_ms(50), table=world.table, n=7))
    world.follow()
    run = world.run_of_the_job()
    assert run["JobRunState"] == "SUCCEEDED", run["ErrorMessage"]

    *progress, report = world.printed(run)
    assert progress[0] == {"event": "delivered", "table": world.place, "deltas": LARGE + 1}
    assert report == {"delivered": {world.place: LARGE + 1}, "failed": {}}
    rows = {f"r{n}": (n,) for n in range(1, LARGE + 1)}
    assert dataset.rows(world.table, "n") == rows | {"r1": (7,)}
    assert world.waiting(world.table) == []
    assert world.place in world.announced(), "what is left there is the function's"
    listed, used = rights(STACK, world.emulator, "tests/glue/test_bigquery_entry_point.py")
    assert listed
    assert listed - used == set()


@pytest.mark.law("D17", "D9")
def test_failed_run_reports_its_reason_and_the_function_delivers_instead(
    world: Deployed, dataset: BigQueryDestination
) -> None:
    world.put(*some(world))
    iam, role = boto3.client("iam"), world.ids["BigQueryJobRole"]
    secrets = {"Effect": "Deny", "Action": "secretsmanager:*", "Resource": "*"}
    denied = json.dumps({"Version": "2012-10-17", "Statement": [secrets]})
    iam.put_role_policy(RoleName=role, PolicyName="none", PolicyDocument=denied)
    try:
        world.follow()
        run = world.run_of_the_job()
    finally:
        iam.delete_role_policy(RoleName=role, PolicyName="none")

    refused = f"{world.place}: AdapterRefused: the secret {SECRETS}{world.table} cannot be read"
    assert run["JobRunState"] == "FAILED"
    assert refused in run["ErrorMessage"]
    assert list(world.printed(run)[-1]["failed"]) == [world.place]
    assert dataset.rows(world.table) == {}

    world.follow()
    assert set(dataset.rows(world.table, "n")) == {f"r{n}" for n in range(1, LARGE + 1)}
    assert world.waiting(world.table) == []


@pytest.mark.law("D17")
def test_run_with_an_invalid_argument_fails_and_names_it(world: Deployed) -> None:
    glue, job = boto3.client("glue"), world.settings.bigquery_job
    glue.start_job_run(JobName=job, Arguments={"--deltas_min": "none"})
    run = world.run_of_the_job()

    assert run["JobRunState"] == "FAILED"
    assert run["ErrorMessage"].endswith("--deltas_min is a number above 0")
