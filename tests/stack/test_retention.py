"""Retention on the deployed stack: a checkpoint is built, and served as clients read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from lakesync.wire.records import decode_records
from tests.stack.test_sockets import next_answer, opened
from tests.support.deployed import Tenant, executed, reconfigure
from tests.support.waiting import drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.analysis.connection import Aws
    from tools.local_stack.stack import Stack

ROWS = 40


def retained(aws: Aws) -> dict[str, Any]:
    """Do what the schedule does; returns the execution at its end."""
    return executed(aws, "RetentionStateMachineArn")


@pytest.fixture(scope="module")
def kept(stack: Stack) -> Tenant:
    tenant = Tenant(stack)
    tenant.push(tenant.make(Op.INSERT, f"r{n}", {"n": n}) for n in range(ROWS))
    tenant.push([tenant.make(Op.DELETE, "r7")])
    path, admin = f"/v1/admin/flush/{tenant.gateway}", tenant.token(role="admin")
    assert tenant.call("POST", path, token=admin).is_success
    return tenant


def streamed(tenant: Tenant, **query: str) -> Any:
    path = f"/sync/{tenant.gateway}/checkpoint"
    return tenant.call("GET", path, token=tenant.token("reader"), params=query)


def rows_of(body: bytes) -> set[tuple[str, str]]:
    rows = set()
    while body:
        size = int.from_bytes(body[:4], "big")
        rows |= {(delta.row_id, delta.op.name) for delta in decode_records(body[4 : 4 + size])}
        body = body[4 + size :]
    return rows


def test_retention_builds_a_checkpoint_that_clients_can_read(kept: Tenant, aws: Aws) -> None:
    assert streamed(kept).status_code == 404

    execution = retained(aws)

    assert execution["status"] == "SUCCEEDED", execution
    answer = streamed(kept)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-lakesync-checkpoint-stream"
    wanted = {(f"r{n}", "INSERT") for n in range(ROWS) if n != 7} | {("r7", "DELETE")}
    assert rows_of(answer.content) == wanted
    behind = kept.pull("reader", int(answer.headers["x-checkpoint-hlc"]))
    assert {delta.row_id for delta in behind} <= {row for row, _ in wanted}
    assert streamed(kept, part="0").content == answer.content
    assert streamed(kept, checkpoint="0" * 16 + "-" + "0" * 16).status_code == 410


def test_client_bootstraps_from_the_checkpoint_over_a_web_socket(
    kept: Tenant, socket_url: str
) -> None:
    rows, snapshot = set(), SNAPSHOT
    with opened(socket_url, kept, "s1") as socket:
        while snapshot:
            asked = Pull("s1", snapshot=snapshot, removes=True, own_cursor=True)
            socket.send(proto.encode_pull_frame(asked, 9))
            tag, body = next_answer(socket)
            assert tag is Tag.PULL
            page = proto.decode_page(body)
            rows |= {delta.row_id for run in page.records for delta in decode_records(run)}
            snapshot = page.snapshot
    assert rows >= {f"r{n}" for n in range(ROWS) if n != 7}


@pytest.fixture
def few_are_many(aws: Aws) -> Iterator[None]:
    """Gateways of a few rows count as those whose checkpoints come out of the lake."""
    client = aws.client("lambda")
    name, _, alias = aws.output("RetainFunction").rpartition(":")
    before = client.get_alias(FunctionName=name, Name=alias)["FunctionVersion"]
    variables = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]

    def configure(variables: dict[str, str]) -> None:
        reconfigure(aws, name, Environment={"Variables": variables})

    configure({**variables, "CHECKPOINT_LAKE_ROWS": str(ROWS)})
    changed = client.publish_version(FunctionName=name)["Version"]
    client.update_alias(FunctionName=name, Name=alias, FunctionVersion=changed)
    yield
    client.update_alias(FunctionName=name, Name=alias, FunctionVersion=before)
    configure(variables)


@pytest.mark.usefixtures("few_are_many")
def test_checkpoint_of_a_large_gateway_is_built_from_the_lake(kept: Tenant, aws: Aws) -> None:
    before = streamed(kept).headers["x-checkpoint-hlc"]
    kept.push([kept.make(Op.INSERT, "newer", {"n": 1})])
    kept.flush()
    drained(kept.waiting)

    assert retained(aws)["status"] == "SUCCEEDED"

    runs = aws.client("glue").get_job_runs(JobName=aws.output("CheckpointJobName"))["JobRuns"]
    ours = [run for run in runs if kept.gateway in run["Arguments"]["--flushed"]]
    assert [run["JobRunState"] for run in ours] == ["SUCCEEDED"], ours
    answer = streamed(kept)
    assert int(answer.headers["x-checkpoint-hlc"]) > int(before)
    wanted = {(f"r{n}", "INSERT") for n in range(ROWS) if n != 7}
    assert rows_of(answer.content) == wanted | {("newer", "INSERT"), ("r7", "DELETE")}


def test_retention_succeeds_after_a_stopped_execution(kept: Tenant, aws: Aws) -> None:
    client = aws.client("stepfunctions")
    machine = aws.output("RetentionStateMachineArn")
    kept.push([kept.make(Op.INSERT, "late", {"n": 1})])
    stopped = client.start_execution(stateMachineArn=machine)["executionArn"]
    client.stop_execution(executionArn=stopped)

    assert retained(aws)["status"] == "SUCCEEDED"
    assert streamed(kept).status_code == 200


@pytest.mark.parametrize("task", ["build", "trim", "forget", "clean"])
def test_each_retention_task_can_be_invoked_manually(kept: Tenant, aws: Aws, task: str) -> None:
    client = aws.client("lambda")
    payload = json.dumps({"task": task, "gateway": kept.gateway})

    invoked = client.invoke(FunctionName=aws.output("RetainFunction"), Payload=payload)

    answer = json.loads(invoked["Payload"].read())
    assert answer["finished"] is True, answer
