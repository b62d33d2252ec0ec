"""`lakesync lake share`, and who reads what is shared: on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, LongType, NestedField, StringType

from lakesync.analysis import open_shared
from lakesync.analysis import shared_lake as lake_shares
from lakesync.analysis.connection import Aws, Options, resolve
from lakesync.analysis.shared_lake import shared_lake
from lakesync.cli.removal import remove_from_lake
from lakesync.materialise.sharing import share_key
from lakesync.ports.stores import STACK as STACK_WIDE
from tests.support.athena import read_document
from tests.support.command_lines import answers, run
from tests.support.emulated_stack import (
    PLAIN_TABLE,
    catalogue_of,
    emulated_stack,
    lead_to,
    recorded,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.types import IcebergType
    from typer.testing import Result

    from tools.local_stack.aws_emulator import Emulator

pytestmark = pytest.mark.emulator

STACK = "shared-stack"
TEMPLATE: dict[str, Any] = {
    "Resources": {
        "Audit": {"Type": "AWS::DynamoDB::Table", "Properties": PLAIN_TABLE},
        "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "shared-lake"}},
    },
    "Outputs": {
        "AuditTable": {"Value": {"Ref": "Audit"}},
        "LakeBucket": {"Value": {"Ref": "Bucket"}},
        "DatabasePrefix": {"Value": "ls"},
    },
}
PLACE = "ls__shared"
ICEBERG: dict[str, IcebergType] = {"integer": LongType(), "string": StringType()}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with emulated_stack(STACK, TEMPLATE) as started:
        yield started


@pytest.fixture(autouse=True)
def elsewhere(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lead_to(emulator, STACK, "acme", tmp_path, monkeypatch)


def client(emulator: Emulator, service: str) -> Any:
    make: Any = boto3.client
    return make(service, **emulator.client_options())


def aws() -> Aws:
    return Aws(resolve(Options(stack=STACK), {}, Path.cwd(), needs_gateway=False))


def put(
    emulator: Emulator, gateway: str, columns: dict[str, str], rows: list[tuple[Any, ...]]
) -> None:
    """Make a gateway's table of flights; a row is its id, whether it is deleted, and its values."""
    catalogue = catalogue_of(emulator)
    catalogue.create_namespace(f"ls_{gateway}")
    own = [NestedField(n, name, ICEBERG[columns[name]]) for n, name in enumerate(columns, start=4)]
    schema = Schema(
        NestedField(1, "_id", StringType()), NestedField(2, "_is_deleted", BooleanType()),
        NestedField(3, "_commit", LongType()), *own,
    )  # fmt: skip
    made = catalogue.create_table(
        f"ls_{gateway}.flights",
        schema,
        location=f"s3://shared-lake/warehouse/{gateway}/flights",
        properties={
            "lakesync.kind": "state", "lakesync.table": "flights", "lakesync.gateway": gateway,
            "lakesync.stack": aws().stack_id,
        },
    )  # fmt: skip
    names = {each.name: each.field_id for each in made.schema().fields}
    written = {str(names[name]): (kind, name) for name, kind in columns.items()}
    with made.transaction() as transaction:
        transaction.set_properties({"lakesync.columns": json.dumps(written)})
    values = [(row[0], row[1], 7, *row[2:]) for row in rows]
    records = [dict(zip(made.schema().column_names, each, strict=True)) for each in values]
    made.append(
        pa.Table.from_pylist(records, made.schema().as_arrow()),
        snapshot_properties={"lakesync.commit": "7"},
    )


@pytest.fixture(scope="module")
def tables(emulator: Emulator) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.environment().items():
            patch.setenv(name, value)
        put(emulator, "acme", {"delay": "integer"}, [("f1", False, 70), ("f2", True, 1)])
        put(emulator, "blue", {"delay": "string", "note": "string"}, [("f1", False, "9", "late")])
        put(emulator, "cargo", {"delay": "integer"}, [("f3", False, 5)])


def sql_of(emulator: Emulator, name: str) -> str:
    view = client(emulator, "glue").get_table(DatabaseName=PLACE, Name=name)["Table"]
    sql: str = read_document(view["ViewOriginalText"])["originalSql"]
    return sql


@pytest.fixture
def shared(tables: None) -> Iterator[Result]:
    yield run("lake", "share", "flights")
    run("lake", "unshare", "flights")


@pytest.mark.law("J2", "L24")
def test_a_table_is_shared_listed_narrowed_and_unshared(emulator: Emulator, shared: Result) -> None:
    assert shared.exit_code == 0, shared.output
    assert "ls__shared.flights has 3 tables of as many gateways, 2 columns" in shared.stdout
    assert "delay is text: the tables have integer, string" in shared.stderr
    record = recorded(emulator, STACK, STACK_WIDE, "shareLakeTable")[0]
    assert (record.outcome, record.target) == ("done", "flights")
    assert json.loads(record.before) == {"shared": False}
    after = json.loads(record.after)
    assert after["members"] == {"number": 3, "first": ["acme", "blue", "cargo"]}

    [listed] = [one for one in answers("lake", "status", "--json") if "share" in one]
    assert listed == {
        "share": "flights", "database": PLACE, "table": "flights", "gateways": "*",
        "tables": 3, "columns": 2, "wrong": "",
    }  # fmt: skip
    assert "ls__shared" in run("lake", "status").stdout
    client(emulator, "glue").delete_table(DatabaseName=PLACE, Name="flights__live")
    [listed] = [one for one in answers("lake", "status", "--json") if "share" in one]
    assert listed["wrong"] == "flights__live: missing"

    narrower = run("lake", "share", "flights", "--gateways", "[ab]*", "--json")
    assert json.loads(narrower.stdout)["members"]["first"] == ["acme", "blue"]
    assert "ls_cargo" not in sql_of(emulator, "flights__live")

    assert "flights is no longer shared" in run("lake", "unshare", "flights").stdout
    assert client(emulator, "glue").get_tables(DatabaseName=PLACE)["TableList"] == []
    [record] = recorded(emulator, STACK, STACK_WIDE, "unshareLakeTable")
    assert json.loads(record.after) == {"shared": False}
    assert "no shared table 'flights'" in run("lake", "unshare", "flights").stderr


def test_a_share_with_a_taken_or_bad_name_or_too_long_a_query_is_refused(
    shared: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared.exit_code == 0
    taken = run("lake", "share", "planes", "--as", "flights")
    assert "flights is the table flights already: choose another name by --as" in taken.stderr
    assert "is not of a-z" in run("lake", "share", "flights", "--as", "A-B").stderr
    later = run("lake", "share", "planes", "--as", "planes")
    assert "no gateway has it in the lake yet" in later.stdout
    assert "planes is no longer shared" in run("lake", "unshare", "planes").stdout
    monkeypatch.setattr("lakesync.materialise.sharing.QUERY_BYTES_MAX", 400)
    refused = run("lake", "share", "flights", "--as", "many")
    assert "over 3 gateways of 2 columns takes" in refused.stderr
    assert "name fewer by --gateways" in refused.stderr
    assert lake_shares.shares_of(aws()).read("many") is None


@pytest.mark.law("L24")
def test_shared_tables_are_queried_locally(shared: Result) -> None:
    def asked(sql: str, *words: str) -> list[Any]:
        return answers("query", sql, "--shared", "--json", *words)

    everything = asked("select * from flights order by _gateway")
    assert everything == [
        {"_gateway": "acme", "_id": "f1", "delay": "70", "note": None},
        {"_gateway": "blue", "_id": "f1", "delay": "9", "note": "late"},
        {"_gateway": "cargo", "_id": "f3", "delay": "5", "note": None},
    ]
    assert asked("select count(*) as n from flights where note = 'late'") == [{"n": 1}]
    assert asked("select _gateway from flights where delay = '5'") == [{"_gateway": "cargo"}]
    gone = asked("select _gateway, _commit from flights where _is_deleted", "--all-columns")
    assert gone == [{"_gateway": "acme", "_commit": 7}]
    assert asked("select count(*) as n from flights", "--as-of", "7") == [{"n": 3}]
    assert "not histories" in run("query", "select 1", "--shared", "--changes").stderr

    notebook = open_shared(stack=STACK).unwrap()
    assert notebook.tables().unwrap() == ["flights"]
    rows = notebook.arrow("flights", columns=["_gateway", "delay"]).unwrap()
    assert sorted(rows["delay"].to_pylist()) == ["5", "70", "9"]


@pytest.mark.law("L24")
@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("_gateway = 'acme'", {"acme"}),
        ("_gateway in ('acme', 'cargo')", {"acme", "cargo"}),
        ("_gateway > 'acme' and _gateway <= 'blue'", {"blue"}),
        ("delay = '5'", {"acme", "blue", "cargo"}),
    ],
)
def test_a_shared_query_opens_only_the_gateways_of_its_condition(
    shared: Result, monkeypatch: pytest.MonkeyPatch, condition: str, read: set[str]
) -> None:
    opened = []
    own = shared_lake.__globals__["Lake"]

    def noted(of: Aws, gateway: str, only: str) -> Any:
        opened.append(gateway)
        return own(of, gateway, only)

    monkeypatch.setitem(shared_lake.__globals__, "Lake", noted)
    sql = f"select count(*) as n from flights where {condition}"  # noqa: S608 - no input
    assert run("query", sql, "--shared").exit_code == 0
    assert set(opened) == read


def test_the_sql_of_a_share_is_printed_with_its_underlying_views(
    shared: Result,
) -> None:
    printed = run("lake", "views", "--shared", "flights", "--engine", "duckdb", "--catalog", "lake")
    statements = printed.stdout.splitlines()
    assert statements[0] == 'CREATE SCHEMA IF NOT EXISTS "ls_acme";'
    assert statements[3] == 'CREATE SCHEMA IF NOT EXISTS "ls__shared";'
    assert len(statements) == 4 + 3 * 2 + 3
    views = answers("lake", "views", "--shared", "flights", "--json")
    assert [one["view"] for one in views[-3:]] == ["flights", "flights__rows", "flights__live"]
    assert "no shared table 'other'" in run("lake", "views", "--shared", "other").stderr


@pytest.mark.law("L24")
def test_dropping_a_gateways_tables_removes_it_from_shares(
    emulator: Emulator, shared: Result
) -> None:
    put(emulator, "trial", {"delay": "integer"}, [("f4", False, 5)])
    run("lake", "share", "flights")
    assert "ls_trial" in sql_of(emulator, "flights")

    assert remove_from_lake(aws(), "trial") == {"lake tables": 0, "object versions": 0}
    assert "ls_trial" not in sql_of(emulator, "flights")
    assert "ls_acme" in sql_of(emulator, "flights")
    put(emulator, "alone", {"delay": "integer"}, [("f5", False, 5)])
    run("lake", "share", "flights", "--as", "alone", "--gateways", "alone")
    assert remove_from_lake(aws(), "alone")["lake tables"] == 0
    names = [
        t["Name"] for t in client(emulator, "glue").get_tables(DatabaseName=PLACE)["TableList"]
    ]
    assert not [name for name in names if name.startswith("alone")]
    run("lake", "unshare", "alone")


def test_a_shared_query_names_a_table_dropped_by_hand(emulator: Emulator, shared: Result) -> None:
    put(emulator, "gone", {"delay": "integer"}, [("f6", False, 5)])
    run("lake", "share", "flights")
    glue = client(emulator, "glue")
    glue.delete_table(DatabaseName="ls_gone", Name="flights")
    asked = run("query", "select count(*) from flights", "--shared")
    assert "flights of gone is gone: lakesync lake share renews" in asked.stderr
    assert run("lake", "share", "flights").exit_code == 0
    stored = client(emulator, "s3").get_object(Bucket="shared-lake", Key=share_key("flights"))
    assert b'"gone"' not in stored["Body"].read()
