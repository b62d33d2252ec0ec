"""`lakesync checkpoint` on S3 of the emulator, with a function that builds for real."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.adapters.lake.s3 import S3Objects
from lakesync.analysis.connection import Aws
from lakesync.checkpoint.store import Checkpoints
from lakesync.cli.commands import gateways
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.ports import ROW_PARTS
from tests.support.builders import insert
from tests.support.checkpoints import Kept
from tests.support.command_lines import answers, run
from tests.support.emulated_stack import PLAIN_TABLE, emulated_stack, lead_to, recorded
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from lakesync.ports import AuditRecord
    from tools.local_stack.aws_emulator import Emulator

pytestmark = pytest.mark.emulator

STACK = "some-stack"
BUCKET = "some-lake"
TEMPLATE = {
    "Resources": {
        "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": BUCKET}},
        "Audit": {"Type": "AWS::DynamoDB::Table", "Properties": PLAIN_TABLE},
    },
    "Outputs": {
        "LakeBucket": {"Value": BUCKET},
        "RetainFunction": {"Value": "retain"},
        "AuditTable": {"Value": {"Ref": "Audit"}},
    },
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with emulated_stack(STACK, TEMPLATE) as started:
        yield started


@pytest.fixture(autouse=True)
def gateway_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the buffer of the tests, not in a table of the stack."""
    monkeypatch.setattr(gateways, "must_exist_in_stack", lambda *_: None)


class Retain:
    """What the retention function answers, with the time for so many reads in each call."""

    def __init__(self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self._emulator = emulator
        self.kept = Kept()
        self.reads = 1_000
        self.answers: list[bytes] = []
        self.asked: list[dict[str, Any]] = []
        self.objects = S3Objects(BUCKET, boto3.client("s3", **emulator.client_options()))
        real = Aws.client

        def client(aws: Aws, service: str, **options: Any) -> Any:
            return self if service == "lambda" else real(aws, service, **options)

        monkeypatch.setattr(Aws, "client", client)

    def invoke(self, *, FunctionName: str, Payload: str) -> dict[str, Any]:  # noqa: N803 - as boto3
        assert FunctionName == "retain"
        task = json.loads(Payload)
        self.asked.append(task)
        if self.answers:
            return {"FunctionError": "Unhandled", "Payload": io.BytesIO(self.answers.pop())}
        left = iter(range(self.reads))
        checkpoints = Checkpoints(self.objects)
        clock = self.kept.time.wall_clock
        builder = Builder(
            self.kept.buffer, self.objects, checkpoints, wall_clock=clock, chunk_bytes=200
        )
        report = builder.build(task["gateway"], has_time=lambda: next(left, None) is not None)
        answer = {
            "place": "",
            "checkpoint": report.checkpoint,
            "since": str(report.since),
            "rows": report.rows,
            "finished": report.finished,
        }
        return {"Payload": io.BytesIO(json.dumps(answer).encode())}

    def records(self) -> list[AuditRecord]:
        """Return what was recorded of the gateway, the latest first."""
        return recorded(self._emulator, STACK, GATEWAY)

    def push(self, table: str, count: int, at: int = 1) -> None:
        self.kept.push(
            *(insert(f"r{n}", at=at + n, table=table, title="some text") for n in range(count))
        )
        self.kept.flushed()


@pytest.fixture
def retain(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Retain]:
    """The standard variables lead to the emulator; there is no stack file."""
    lead_to(emulator, STACK, GATEWAY, tmp_path, monkeypatch)
    retain = Retain(emulator, monkeypatch)
    yield retain
    for key in retain.objects.list_objects("checkpoints/"):
        retain.objects.delete_object(key)


def checkpoint(*words: str) -> Result:
    return run("checkpoint", *words)


def answered(*words: str) -> list[Any]:
    return answers("checkpoint", *words)


@pytest.mark.usefixtures("retain")
def test_checkpoint_list_and_show_point_to_build_without_a_checkpoint() -> None:
    assert checkpoint("list").stdout == "there is no checkpoint yet: lakesync checkpoint build\n"
    assert answered("list", "--json") == []
    for name in ("latest", "01930c5a2b300000-000001930c5a2b30", "../secrets"):
        done = checkpoint("show", name)
        assert done.exit_code == 1
        assert done.stderr.endswith("there are: none: lakesync checkpoint build\n")
    assert checkpoint("build").stdout == "the gateway has no rows to keep\n"


def test_a_checkpoint_is_built_listed_and_shown(retain: Retain) -> None:
    retain.push("todos", 20)
    retain.push("notes", 3)
    [built] = answered("build", "--json")
    assert built["rows"] == 23
    latest = {"latest": built["checkpoint"]}
    record = retain.records()[0]
    assert (record.operation, record.outcome) == ("buildCheckpoint", "done")
    assert [json.loads(record.before), json.loads(record.after)] == [{"latest": None}, latest]
    [listed] = answered("list", "--json")
    assert (listed["checkpoint"], listed["since"]) == (built["checkpoint"], built["since"])
    assert (listed["tables"], listed["rows"]) == (2, 23)
    assert built["checkpoint"] in checkpoint("list").stdout

    [shown] = answered("show", "--json")
    assert [(table["table"], table["rows"]) for table in shown["tables"]] == [
        ("notes", 3), ("todos", 20),
    ]  # fmt: skip
    assert sum(table["bytes"] for table in shown["tables"]) == listed["bytes"]
    by_name = checkpoint("show", built["checkpoint"])
    assert by_name.stdout.startswith(f"{built['checkpoint']}, begun 20")
    assert "todos" in by_name.stdout


def test_a_build_without_new_commits_returns_the_existing_checkpoint(retain: Retain) -> None:
    retain.push("todos", 2)
    [first] = answered("build", "--json")
    [again] = answered("build", "--json")
    assert (again["checkpoint"], again["rows"]) == (first["checkpoint"], 0)
    retain.push("todos", 3, at=100)
    assert checkpoint("build").stdout.endswith(": 3 rows written\n")
    listed = answered("list", "--json")
    assert [item["rows"] for item in listed] == [2, 3]
    assert answered("show", "--json")[0]["checkpoint"] == listed[-1]["checkpoint"]


def test_a_checkpoint_build_that_runs_out_of_time_is_continued(retain: Retain) -> None:
    retain.push("todos", 10)
    retain.push("notes", 10)
    retain.reads = ROW_PARTS + 4  # one table, and a little of the other
    done = checkpoint("build")
    assert done.exit_code == 0
    assert len(retain.asked) > 1
    assert done.stdout.endswith(": 20 rows written\n")
    assert "rows so far" in done.stderr


def test_a_checkpoint_build_without_progress_ends_with_an_error(retain: Retain) -> None:
    retain.push("todos", 10)
    retain.reads = 1
    done = checkpoint("build")
    assert done.exit_code == 3
    assert "no row was written" in done.stderr


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"errorMessage": "the store is away"}', "the store is away"),
        (b"null", "see its log"),
        (b"", "it said nothing"),
    ],
)
def test_a_failed_checkpoint_build_is_reported_in_one_line(
    retain: Retain, answer: bytes, message: str
) -> None:
    retain.answers.append(answer)
    done = checkpoint("build")
    assert done.exit_code == 3
    assert done.stderr == (f"error: the build stopped: {message}; build again to continue there\n")
