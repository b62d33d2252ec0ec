"""The commands that look at a stack's AWS side, on the emulator: secret, queues, lake."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import boto3
import jwt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

from lakesync.analysis.lake import Lake
from lakesync.buffer.admin_stores import ItemAudit
from lakesync.buffer.admission import ItemAccess
from lakesync.cli import lake_tables as lake_job
from lakesync.cli.commands import gateways
from lakesync.cli.session import listed
from lakesync.core.config import GatewayConfig
from lakesync.core.gateway_identity import gateway_secret, new_epoch
from lakesync.core.names import lake_columns, lake_tables
from lakesync.errors import Unavailable
from lakesync.ports import Revocation
from lakesync.ports.stores import STACK as STACK_WIDE
from tests.support.athena import read_document
from tests.support.command_lines import LINES, answers, lines, run
from tests.support.commits import Writer
from tests.support.emulated_stack import (
    PLAIN_TABLE,
    catalogue_of,
    emulated_stack,
    items_of,
    lead_to,
    output,
    recorded,
)
from tests.support.some import some
from tests.support.stores import TABLE, with_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from tools.local_stack.aws_emulator import Emulator

pytestmark = pytest.mark.emulator

STACK = "some-stack"
GATEWAYS = ("acme", "anew", "bare", "blue")
SECRET = "a secret that signs tokens of tests only"
SIGNERS = {"current": SECRET, "previous": "x", "generations": {"acme": [3, 2]}}
TEMPLATE: dict[str, Any] = {
    "Resources": {
        "Secret": {
            "Type": "AWS::SecretsManager::Secret",
            "Properties": {"SecretString": json.dumps(SIGNERS)},
        },
        "Table": {"Type": "AWS::DynamoDB::Table", "Properties": PLAIN_TABLE},
        "Audit": {"Type": "AWS::DynamoDB::Table", "Properties": PLAIN_TABLE},
        "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "some-lake"}},
        "MaintainJob": {
            "Type": "AWS::Glue::Job",
            "Properties": {
                "Role": "arn:aws:iam::000000000000:role/nobody",
                "Command": {"Name": "glueetl", "ScriptLocation": "s3://some-lake/none.py"},
                "DefaultArguments": {"--snapshot_keep_days": "7"},
            },
        },
        **{
            name: {"Type": "AWS::SQS::Queue"}
            for name in ("FlushQueue", "FlushDlq", "AnnounceQueue", "AnnounceDlq")
        },
    },
    "Outputs": {
        "HttpUrl": {"Value": "http://127.0.0.1:9"},
        "JwtSecretArn": {"Value": {"Ref": "Secret"}},
        "BufferTable": {"Value": {"Ref": "Table"}},
        "AuditTable": {"Value": {"Ref": "Audit"}},
        "LakeBucket": {"Value": {"Ref": "Bucket"}},
        "DatabasePrefix": {"Value": "lakesync"},
        "MaintainJobName": {"Value": {"Ref": "MaintainJob"}},
        **{
            f"{name}Url": {"Value": {"Ref": name}}
            for name in ("FlushQueue", "FlushDlq", "AnnounceQueue", "AnnounceDlq")
        },
    },
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with emulated_stack(STACK, TEMPLATE) as started:
        yield started


@pytest.fixture(autouse=True, scope="module")
def known(emulator: Emulator) -> None:
    """Something was declared for the gateways of these tests."""
    revoked = Revocation("client", "phone", 1, "admin")
    items = items_of(emulator, output(emulator, STACK, "BufferTable"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.environment().items():
            patch.setenv(name, value)
        for gateway in GATEWAYS:
            ItemAccess(items).revoke(gateway, revoked)


@pytest.fixture(autouse=True)
def elsewhere(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_to(emulator, STACK, "acme", tmp_path, monkeypatch)


# --- what the stack says --------------------------------------------------------------------------


def test_a_token_is_signed_with_the_current_secret_of_the_stack() -> None:
    signed = run("token", "--client", "phone").stdout.strip()
    assert jwt.decode(signed, SECRET, algorithms=["HS256"])["gw"] == "acme"


@pytest.mark.law("U5")
def test_the_secret_command_prints_the_current_generation() -> None:
    assert run("secret").stdout.strip() == gateway_secret(SECRET, "acme", 3)
    assert run("secret", "--gateway", "blue").stdout.strip() == gateway_secret(SECRET, "blue")


def test_a_quota_is_set_shown_and_reset() -> None:
    assert "pushes a second: stack default" in run("quota", "show").stdout
    assert run("quota", "set").exit_code == 2
    assert run("quota", "set", "--pushes", "9", "--bytes", "0").exit_code == 0
    shown = run("quota", "show", "--json").stdout
    assert json.loads(shown) == {"gateway": "acme", "pushes": 9, "deltas": None, "bytes": 0}
    assert "bytes a second: no limit" in run("quota", "show").stdout
    assert "stack default" in run("quota", "show", "--gateway", "blue").stdout

    assert run("quota", "reset").exit_code == 0
    assert json.loads(run("quota", "show", "--json").stdout)["pushes"] is None


@pytest.mark.law("J1")
def test_a_change_by_aws_credentials_is_recorded_with_their_arn(emulator: Emulator) -> None:
    assert run("quota", "set", "--gateway", "kept", "--pushes", "9").exit_code == 0

    (record,) = recorded(emulator, STACK, "kept", "setQuota")
    assert (record.operation, record.role, record.outcome) == ("setQuota", "iam", "done")
    assert record.user.startswith("arn:aws:")
    assert json.loads(record.before)["pushes"] is None
    assert json.loads(record.after)["pushes"] == 9


def test_an_unknown_stack_is_reported() -> None:
    done = run("token", "--stack", "another")
    assert done.exit_code == 1
    assert done.stderr == (
        "error: there is no stack another in us-east-1: check --stack and AWS_REGION\n"
    )


def test_unreachable_aws_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    done = run("token")
    assert done.exit_code == 3
    assert done.stderr.startswith("error: AWS cannot be reached")
    assert len(done.stderr.splitlines()) == 1


# --- dead letters ---------------------------------------------------------------------------------


def _queue(emulator: Emulator, name: str) -> tuple[Any, str]:
    url = output(emulator, STACK, f"{name}Url")
    return boto3.client("sqs", **emulator.client_options()), url


def _bodies(emulator: Emulator, name: str) -> list[str]:
    client, url = _queue(emulator, name)
    bodies = []
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            bodies.append(message["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return sorted(bodies)


def test_a_replay_moves_every_message_and_keeps_its_body_and_attributes(
    emulator: Emulator,
) -> None:
    client, dead = _queue(emulator, "AnnounceDlq")
    for number in range(25):
        client.send_message(
            QueueUrl=dead,
            MessageBody=f"batch {number:02d}",
            MessageAttributes={"why": {"DataType": "String", "StringValue": "a test"}},
        )
    assert answers("replay", "announce", "--json") == [{"queue": "announce", "moved": 25}]
    assert answers("replay", "announce", "--json") == [{"queue": "announce", "moved": 0}]
    client, source = _queue(emulator, "AnnounceQueue")
    [first] = client.receive_message(
        QueueUrl=source, MessageAttributeNames=["All"], VisibilityTimeout=0
    )["Messages"]
    assert first["MessageAttributes"]["why"]["StringValue"] == "a test"
    assert _bodies(emulator, "AnnounceQueue") == [f"batch {number:02d}" for number in range(25)]

    assert [
        (record.target, record.outcome, json.loads(record.before), json.loads(record.after))
        for record in recorded(emulator, STACK, STACK_WIDE, "replayQueue")
        if record.target == "announce"
    ] == [
        ("announce", "done", {"waiting": "0"}, {"waiting": "0"}),
        ("announce", "done", {"waiting": "25"}, {"waiting": "0"}),
    ]
    only = ("--operation", "replayQueue", "--limit", "1", "--json")
    shown = answers("audit", "--stack-wide", *only)
    assert [(each["target"], each["after"]) for each in shown] == [("announce", {"waiting": "0"})]
    assert run("audit", "--stack-wide", "--until", "2020-01-01", "--json").stdout == ""
    assert run("audit", "acme", "--stack-wide").exit_code == 2


def test_a_replayed_message_keeps_its_gateways_message_group(emulator: Emulator) -> None:
    client, dead = _queue(emulator, "FlushDlq")
    client.send_message(QueueUrl=dead, MessageBody='{"gateway": "acme"}')
    run("replay", "flush")

    client, source = _queue(emulator, "FlushQueue")
    [moved] = client.receive_message(QueueUrl=source, AttributeNames=["All"])["Messages"]
    client.delete_message(QueueUrl=source, ReceiptHandle=moved["ReceiptHandle"])
    assert moved["Attributes"]["MessageGroupId"] == "acme"


@pytest.mark.law("J1")
def test_a_replay_that_cannot_be_audited_moves_no_message(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, dead = _queue(emulator, "FlushDlq")
    client.send_message(QueueUrl=dead, MessageBody="flush")

    def failing(*_: object) -> None:
        raise Unavailable("DynamoDB is away")

    monkeypatch.setattr(ItemAudit, "begin", failing)
    assert run("replay", "flush").exit_code != 0

    assert _bodies(emulator, "FlushQueue") == []
    assert _bodies(emulator, "FlushDlq") == ["flush"]


def test_replay_shows_messages_with_look_and_moves_at_most_the_limit(emulator: Emulator) -> None:
    client, dead = _queue(emulator, "FlushDlq")
    for number in range(3):
        client.send_message(QueueUrl=dead, MessageBody=f"flush {number}")
    shown = answers("replay", "flush", "--look")
    assert sorted(line["body"] for line in shown) == ["flush 0", "flush 1", "flush 2"]
    assert run("replay", "flush", "--limit", "2").stdout == "flush: 2 messages moved back\n"
    assert len(_bodies(emulator, "FlushQueue")) == 2
    assert len(_bodies(emulator, "FlushDlq")) == 1


@pytest.mark.law("J2")
def test_claims_set_aside_are_shown_with_their_reason_and_replayed(
    emulator: Emulator,
) -> None:
    s3 = boto3.client("s3", **emulator.client_options())
    for gateway, name in (("acme", "1-2"), ("acme", "2-3"), ("other", "1-2")):
        s3.put_object(
            Bucket="some-lake",
            Key=f"claims-failed/{gateway}/todos/{name}.json",
            Body=name.encode(),
            Metadata={"reason": "its schema is not sound"},
        )
    shown = answers("replay", "claims", "--look")
    assert shown[0] == {"claim": "acme/todos/1-2.json", "reason": "its schema is not sound"}
    assert len(shown) == 2
    assert run("replay", "claims", "--limit", "1").stdout == "1 claim put back\n"
    assert answers("replay", "claims", "--json") == [{"queue": "claims", "moved": 1}]
    assert answers("replay", "claims", "--json") == [{"queue": "claims", "moved": 0}]
    claim = s3.get_object(Bucket="some-lake", Key="claims/acme/todos/2-3.json")
    assert claim["Body"].read() == b"2-3"
    claims = ["acme/todos/1-2.json", "acme/todos/2-3.json"]
    assert [
        (record.target, *(json.loads(each)["setAside"] for each in (record.before, record.after)))
        for record in recorded(emulator, STACK, "acme", "replayClaims")
    ] == [
        ("0 claims", listed([]), listed([])),
        ("1 claim", listed(claims[1:]), listed([])),
        ("1 claim", listed(claims), listed(claims[1:])),
    ]
    assert len(_bodies(emulator, "AnnounceQueue")) == 2


# --- the lake -------------------------------------------------------------------------------------

WIRE_NAME = "ToDos"


@pytest.fixture(scope="module")
def lake(emulator: Emulator) -> list[tuple[int, int, int]]:
    """A table as the Glue job makes them, with two snapshots; returns (id, ms, mark) of each."""
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace("lakesync_acme")
    schema = Schema(
        NestedField(1, "_id", StringType()),
        NestedField(2, lake_columns(["Title"], {})["Title"], StringType()),
        NestedField(3, "n", LongType()),
        NestedField(4, "_is_deleted", BooleanType()),
        NestedField(5, "_hlc", LongType()),
    )
    written = {"2": ("string", "Title"), "3": ("integer", "n")}
    properties = {
        "lakesync.kind": "state",
        "lakesync.table": WIRE_NAME,
        "lakesync.columns": json.dumps(written),
    }
    identifier = f"lakesync_acme.{lake_tables(WIRE_NAME)[0]}"
    location = "s3://some-lake/warehouse/todos"
    table = catalogue.create_table(identifier, schema, location=location, properties=properties)
    rows = [("r1", "Milk", 1, False, 7), ("r2", "gone", 2, True, 0)]
    for mark, more in ((100, rows), (200, [("r3", "Bread", 3, False, 9)])):
        columns = dict(zip(schema.column_names, zip(*more, strict=True), strict=True))
        table.append(
            pa.table(columns, schema=table.schema().as_arrow()),
            snapshot_properties={"lakesync.commit": str(mark)},
        )
    marks = (100, 200)
    return [
        (snapshot.snapshot_id, snapshot.timestamp_ms, mark)
        for snapshot, mark in zip(table.snapshots(), marks, strict=True)
    ]


SQL = "select * from ToDos order by _id"


@pytest.mark.usefixtures("lake")
def test_a_query_shows_wire_names_without_tombstones_and_internal_columns() -> None:
    assert answers("query", SQL, "--json") == [
        {"_id": "r1", "Title": "Milk", "n": 1},
        {"_id": "r3", "Title": "Bread", "n": 3},
    ]


@pytest.mark.usefixtures("lake")
def test_all_columns_shows_tombstones_and_internal_columns() -> None:
    rows = answers("query", SQL, "--json", "--all-columns")
    assert [row["_id"] for row in rows] == ["r1", "r2", "r3"]
    assert rows[1]["_is_deleted"] is True
    assert rows[0]["_hlc"] == 7


@pytest.mark.usefixtures("lake")
def test_a_query_reads_only_the_rows_and_columns_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read, whole = [], Lake.read

    def noted(self: Lake, *words: Any, **named: Any) -> Any:
        read.append(whole(self, *words, **named))
        return read[-1]

    monkeypatch.setattr(Lake, "read", noted)
    to = tmp_path / "rows.parquet"
    sql = "select Title from ToDos where n > 1"
    assert run("query", sql, "--to", str(to)).stdout.startswith("1 row written to ")
    assert read[0].to_pydict() == {"Title": ["Bread"], "n": [3]}
    assert pq.read_table(to).to_pydict() == {"Title": ["Bread"]}
    assert answers("query", "select count(*) as c from ToDos", "--json") == [{"c": 2}]
    assert read[1].column_names == ["_id"]
    refused = run("query", sql, "--to", "rows.xls")
    assert (refused.exit_code, len(read)) == (2, 2)
    assert ".parquet" in refused.stderr


def test_query_as_of_takes_a_snapshot_a_time_or_a_commit_stamp(
    lake: list[tuple[int, int, int]],
) -> None:
    (first, first_ms, _), (second, _, _) = lake
    moment = datetime.fromtimestamp(first_ms / 1000, UTC).isoformat()
    for words in ([str(first)], [moment], ["100"], ["199"]):
        rows = answers("query", SQL, "--json", "--as-of", *words)
        assert [row["_id"] for row in rows] == ["r1"], words
    for words in ([str(second)], ["200"], ["2100-01-01"]):
        assert len(answers("query", SQL, "--json", "--as-of", *words)) == 2
    for words in (["99"], ["2001-01-01T00:00:00Z"]):
        done = run("query", SQL, "--as-of", *words)
        assert done.exit_code == 2
        assert "there was nothing in ToDos at that moment" in done.stderr


def test_lake_status_shows_files_snapshots_mark_and_waiting_claims(
    lake: list[tuple[int, int, int]], emulator: Emulator
) -> None:
    s3 = boto3.client("s3", **emulator.client_options())
    key = f"claims/acme/{WIRE_NAME}/9-10.json"
    s3.put_object(Bucket="some-lake", Key=key, Body=b"{}")
    try:
        [state] = answers("lake", "status", "--json")
    finally:
        s3.delete_object(Bucket="some-lake", Key=key)

    assert state["table"] == WIRE_NAME
    assert (state["files"], state["snapshots"]) == (len(lake), len(lake))
    assert state["mark"] == str(lake[-1][2])
    assert state["waiting"] == 1
    assert state["bytes"] > 0
    shown = run("lake", "status", "--table", WIRE_NAME)
    assert WIRE_NAME in shown.stdout
    assert "wait" not in shown.stderr


@pytest.mark.law("L18", "J2")
def test_lake_repair_restores_a_lost_batch_mark_from_the_rows(emulator: Emulator) -> None:
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace("lakesync_repaired")
    schema = Schema(
        NestedField(1, "_id", StringType()),
        NestedField(2, "_commit", LongType()),
        NestedField(3, "_is_deleted", BooleanType()),
    )
    tables = {}
    for name, kind, commits in (("todos", "state", (5, 9)), ("todos__changes", "changes", (5, 9))):
        tables[kind] = catalogue.create_table(
            f"lakesync_repaired.{name}",
            schema,
            location=f"s3://some-lake/warehouse/repaired/{name}",
            properties={"lakesync.kind": kind, "lakesync.table": "todos"},
        )
        columns = {"_id": ["a", "b"], "_commit": commits, "_is_deleted": [False, True]}
        tables[kind].append(pa.table(columns, schema=schema.as_arrow()))

    def repair(*words: str) -> list[Any]:
        return answers("lake", "repair", "--gateway", "repaired", "--json", *words)

    lost = [{"table": name, "mark": "9", "lost": True} for name in ("todos", "todos__changes")]
    assert repair("--dry-run") == lost
    assert repair() == lost
    assert repair() == [{**one, "lost": False} for one in lost]
    assert [
        (record.target, json.loads(record.before), json.loads(record.after))
        for record in recorded(emulator, STACK, "repaired", "repairLake")
    ] == [(name, {"mark": None}, {"mark": "9"}) for name in ("todos__changes", "todos")]
    for table in tables.values():
        table.refresh()
        tagged = table.snapshot_by_name("lakesync")
        assert tagged.summary.additional_properties["lakesync.commit"] == "9"
        assert table.scan().to_arrow().num_rows == 2


def views_recorded(emulator: Emulator) -> tuple[str, str, list[str], list[str]]:
    """Get what the latest record of views says: how it ended, what was wrong before, and after."""
    record = recorded(emulator, STACK, "viewed", "createLakeViews")[0]
    before, after = json.loads(record.before), json.loads(record.after)
    assert before["tables"] == after["tables"] == 1
    assert after["wrong"]["number"] == len(after["wrong"]["first"])
    return record.outcome.value, record.code, before["wrong"]["first"], after["wrong"]["first"]


@pytest.mark.law("J2")
def test_lake_views_are_printed_for_engines_and_created_in_glue(emulator: Emulator) -> None:
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace("lakesync_viewed")
    named = {1: "_id", 2: "due_date", 3: "_is_deleted", 4: "_commit"}
    types = (StringType(), StringType(), BooleanType(), LongType())
    fields = (NestedField(n, named[n], kind) for n, kind in zip(named, types, strict=True))
    catalogue.create_table(
        "lakesync_viewed.todos",
        Schema(*fields),
        location="s3://some-lake/warehouse/viewed/todos",
        properties={
            "lakesync.kind": "state", "lakesync.table": "todos", "lakesync.stack": "arn:stack",
            "lakesync.columns": '{"2":["string","dueDate"]}',
        },
    )  # fmt: skip

    def views(*words: str) -> Result:
        return run("lake", "views", "--gateway", "viewed", *words)

    printed = views("--engine", "duckdb", "--catalog", "lake").stdout.splitlines()
    assert printed[0] == 'CREATE SCHEMA IF NOT EXISTS "lakesync_viewed";'
    assert printed[1] == (
        'CREATE OR REPLACE VIEW "lakesync_viewed"."todos__rows" AS SELECT "_id", "due_date" FROM '
        '"lake"."lakesync_viewed"."todos" WHERE NOT "_is_deleted";'
    )
    assert [one["view"] for one in lines(views("--json"))] == ["todos__rows", "todos__live"]
    assert "is none of athena, duckdb" in views("--engine", "oracle").stderr

    assert "the views of 1 table" in views("--create").stdout
    assert views_recorded(emulator) == (
        "done", "", ["todos__rows: missing", "todos__live: missing"], []
    )  # fmt: skip
    make: Any = boto3.client
    glue = make("glue", **emulator.client_options())
    for name in ("todos__rows", "todos__live"):
        view = glue.get_table(DatabaseName="lakesync_viewed", Name=name)["Table"]
        assert read_document(view["ViewOriginalText"])["schema"] == "lakesync_viewed"
    glue.delete_table(DatabaseName="lakesync_viewed", Name="todos__live")
    glue.create_table(DatabaseName="lakesync_viewed", TableInput={"Name": "todos__live"})
    old = glue.get_table(DatabaseName="lakesync_viewed", Name="todos__rows")["Table"]
    other = {name: old[name] for name in ("Name", "TableType", "Parameters", "ViewOriginalText")}
    glue.update_table(DatabaseName="lakesync_viewed", TableInput=other | {"Description": "old"})
    refused = views("--create")
    assert refused.exit_code != 0
    taken = "todos__live: something else has its name"
    assert taken in refused.stderr
    assert views_recorded(emulator) == (
        "failed", "ADAPTER_ERROR", ["todos__rows: outdated", taken], [taken]
    )  # fmt: skip
    # What lists the lake's tables takes no view for one.
    assert [one["table"] for one in answers("lake", "status", "--gateway", "viewed", "--json")] == [
        "todos"
    ]


@pytest.mark.law("J2")
def test_the_audit_record_of_dropped_lake_tables_names_the_tables(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletion = {"deletedAt": "2026-05-17T08:00:00Z", "provableFrom": "", "proved": True, "left": {}}
    monkeypatch.setattr(gateways, "_deleted", lambda *_: deletion)
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace("lakesync_dropped")
    for name in ("todos", "todos__changes"):
        place = f"s3://some-lake/warehouse/dropped/{name}"
        catalogue.create_table(
            f"lakesync_dropped.{name}", Schema(NestedField(1, "_id", StringType())), location=place
        )
    done = run("gateways", "delete", "dropped", "--yes", "--with-lake")

    assert "lake tables 0" in done.stdout, done.output
    [record] = recorded(emulator, STACK, "dropped", "dropLakeTables")
    assert record.outcome == "done"
    assert json.loads(record.before) == {"tables": listed(["todos", "todos__changes"])}
    assert json.loads(record.after) == {"tables": listed([])}


@pytest.mark.law("J1", "J2")
def test_the_audit_record_of_a_rebuild_has_row_counts_before_and_after(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace("lakesync_anew")
    table = catalogue.create_table(
        "lakesync_anew.todos",
        Schema(NestedField(1, "_id", StringType())),
        location="s3://some-lake/warehouse/anew/todos",
    )

    def run_job(*_: object) -> dict[str, Any]:
        table.append(pa.table({"_id": ["a", "b"]}, schema=table.schema().as_arrow()))
        return {
            "table": "todos", "mark": "9", "rows": 2, "missing": 2, "changed": 0, "surplus": 0,
            "made": False, "written": True,
        }  # fmt: skip

    monkeypatch.setattr(lake_job, "run_job", run_job)
    done = run("lake", "rebuild", "--table", "todos", "--gateway", "anew")

    assert "rebuilt" in done.stdout, done.output
    [record] = recorded(emulator, STACK, "anew", "rebuildLake")
    assert (record.target, record.outcome) == ("todos", "done")
    rows = [json.loads(each)["todos"]["rows"] for each in (record.before, record.after)]
    assert rows == [0, 2]


@pytest.mark.usefixtures("lake")
def test_a_dry_run_of_maintenance_reports_a_plan_and_starts_nothing() -> None:
    [plan] = answers("lake", "maintain", "--dry-run", "--json")
    assert (plan["table"], plan["pays"], plan["small_files"]) == (WIRE_NAME, [], plan["files"])
    assert "nothing was started" in run("lake", "maintain", "--dry-run").stderr

    unknown = run("lake", "maintain", "--table", "nothing")
    assert unknown.exit_code == 1
    assert f"there are: {WIRE_NAME}" in unknown.stderr


@pytest.mark.usefixtures("lake")
@pytest.mark.law("J1")
@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_maintenance_is_audited_with_table_contents_and_outcome(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    def run_job(*_: object) -> dict[str, Any]:
        if outcome == "failed":
            raise Unavailable("the Glue run ended as FAILED")
        return {"each": []}

    monkeypatch.setattr(lake_job, "run_job", run_job)
    done = run("lake", "maintain", "--table", WIRE_NAME)

    assert (done.exit_code == 0) == (outcome == "done")
    record = recorded(emulator, STACK, "acme", "maintainLake")[0]
    assert (record.target, record.outcome) == (WIRE_NAME, outcome)
    before, after = json.loads(record.before), json.loads(record.after)
    assert before[WIRE_NAME]["snapshots"] > 0
    assert before == after, "nothing was done here"


def test_a_query_of_an_unknown_table_lists_the_existing_tables() -> None:
    done = run("query", "select * from todo_list")
    assert done.exit_code == 1
    assert done.stderr.endswith("tables in the lake: ToDos\n")
    assert "the query was refused: Parser Error" in run("query", "selec 1").stderr


@pytest.mark.usefixtures("lake")
def test_find_row_counts_the_lake_snapshots_in_which_the_row_is_readable() -> None:
    for row, snapshots in (("r1", 2), ("r3", 1), ("r2", 0), ("it's", 0)):
        done = run("gateways", "find-row", "acme", WIRE_NAME, row, "--json")
        assert done.exit_code == (1 if snapshots else 0), done.output
        counts = json.loads(done.stdout)["copies"]
        assert (counts["lake"], counts["lake changes"], counts["log"]) == (snapshots, 0, 0)


def test_a_query_of_a_gateway_without_lake_tables_suggests_push_and_flush() -> None:
    done = run("query", "select * from todos", "--gateway", "bare")
    assert done.exit_code == 1
    assert done.stderr.endswith("none yet: push something, then `lakesync flush --wait`\n")
    assert answers("query", "select 1 as one", "--gateway", "bare", "--json") == [{"one": 1}]


def test_aws_commands_on_an_unknown_gateway_end_with_not_found() -> None:
    """By AWS credentials as by the gateway itself."""
    asking = [
        (name, line) for name, line in LINES.items() if line.reaches == "aws" and not line.makes
    ]
    for name, line in some(asking):
        words = shlex.split(line.words.replace("GATEWAY", "nobody"))
        done = run(*name.split(), *words, "--gateway", "nobody", "--json")
        assert (name, done.exit_code) == (name, 1), done.output
        last = json.loads(done.stderr.splitlines()[-1])
        assert last["error"].startswith("there is no gateway nobody: "), name
        assert last["code"] == "NOT_FOUND"


def test_restored_protects_a_table_and_begins_a_new_epoch_in_each_gateway(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAKESYNC_GATEWAY")
    buffer = with_table(emulator.client_options()).buffer()
    for gateway in ("acme", "other"):
        first_commit = Writer(buffer, gateway).prepare("main")
        buffer.commit(replace(first_commit, epoch=new_epoch(gateway)))

    (protected, *first), (again, *second) = (answers("restored", TABLE, "--json") for _ in range(2))

    off = ["point-in-time recovery", "deletion protection", "stream"]
    assert protected == {"table": TABLE, "switchedOn": off}
    assert again == {"table": TABLE, "switchedOn": []}
    assert [item["gateway"] for item in first] == ["acme", "other"]
    for before, after in zip(first, second, strict=True):
        assert before["epoch"] < after["epoch"]
        head = buffer.heads(after["gateway"])["main"]
        assert head.epoch == after["epoch"]
        records = recorded(emulator, STACK, after["gateway"], "beginEpoch")
        assert [(each.target, each.outcome) for each in records] == [(TABLE, "done")] * 2
        epochs = [json.loads(each.after)[after["gateway"]] for each in records]
        assert epochs == [after["epoch"], before["epoch"]]
    whole = recorded(emulator, STACK, STACK_WIDE, "restoreBuffer")[0]
    named = [{each["gateway"]: each["epoch"] for each in some} for some in (first, second)]
    assert [json.loads(whole.before), json.loads(whole.after)] == [
        {"acme": named[0]["acme"], "other": named[0]["other"]},
        {"acme": named[1]["acme"], "other": named[1]["other"]},
    ]

    main = buffer.heads("acme")["main"]
    deleted = GatewayConfig(1, deleted_ms=1_700_000_000_000)
    buffer.save_config("acme", deleted, main, main.lanes, main.commit + 1)
    monkeypatch.delenv("LAKESYNC_STACK")
    assert "--no-record" in run("restored", TABLE).stderr
    assert buffer.heads("other")["main"].epoch == second[1]["epoch"], "nothing was done"
    _, acme, other = answers("restored", TABLE, "--no-record", "--json")
    assert acme == {"gateway": "acme", "epoch": None, "deleted": True}
    assert buffer.heads("other")["main"].epoch == other["epoch"] > second[1]["epoch"]
