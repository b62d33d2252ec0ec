"""What a deleted gateway leaves in the lake and in old versions, dropped on the emulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import boto3
import pytest
from moto import mock_aws
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake import Lake, glue_views
from lakesync.cli import removal
from lakesync.cli.removal import LakeTables, remove_from_lake
from lakesync.core.names import lake_database
from lakesync.maintenance.erasure import OBJECT_KINDS
from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync.materialise.lake_schema import STACK, STATE_TABLE, LakeColumn
from lakesync.materialise.views import GlueViews, ViewedTable
from tools.local_stack.iceberg_rest import start_iceberg_rest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

BUCKET = "lake-removal"
PREFIX = "lakesync_1a2b3c4d"
NOTHING = {"lake tables": 0, "object versions": 0}


class Emulated:
    """`lakesync.analysis.connection.Aws` of an emulator."""

    stack_id = "arn:stack"

    def __init__(self, options: Any) -> None:
        self._options = options
        self.outputs: dict[str, str] = {}
        self.region, self.endpoint = options["region_name"], options["endpoint_url"]

    def credentials(self) -> tuple[str, str, None]:
        return "test", "test", None

    def client(self, service: str) -> Any:
        make: Any = boto3.client
        return make(service, **self._options)

    def output(self, name: str) -> str:
        return {"LakeBucket": BUCKET, "DatabasePrefix": PREFIX}[name]


@pytest.fixture(scope="module")
def aws(emulator: Emulator) -> Iterator[Emulated]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        emulated = Emulated(emulator.client_options())
        s3 = emulated.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield emulated


def filled(aws: Emulated, gateway: str) -> None:
    """Make two tables, and objects of each kind: overwritten, deleted, and as they were."""
    s3, glue = aws.client("s3"), aws.client("glue")
    database = lake_database(PREFIX, gateway)
    glue.create_database(DatabaseInput={"Name": database})
    for table in ("todos", "todos__changes"):
        place = f"warehouse/{database}.db/{table}"
        described = {"Location": f"s3://{BUCKET}/{place}"}
        glue.create_table(
            DatabaseName=database, TableInput={"Name": table, "StorageDescriptor": described}
        )
        s3.put_object(Bucket=BUCKET, Key=f"{place}/data/1.parquet", Body=b"1")
    columns = (LakeColumn("n", "integer", "n"),)
    viewed = ViewedTable(database, "todos", STATE_TABLE, columns, "arn:stack", {})
    assert GlueViews(glue).keep(viewed) == {}
    for kind in OBJECT_KINDS:
        for name in ("once", "twice", "twice", "gone"):
            s3.put_object(Bucket=BUCKET, Key=f"{kind}/{gateway}/{name}", Body=b"1")
        s3.delete_object(Bucket=BUCKET, Key=f"{kind}/{gateway}/gone")


def versions(aws: Emulated) -> list[str]:
    """Return the keys of all versions of all objects."""
    pages = aws.client("s3").get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    return [
        version["Key"] for page in pages
        for version in (*page.get("Versions", []), *page.get("DeleteMarkers", []))
    ]  # fmt: skip


def tables(aws: Emulated, gateway: str) -> int:
    """Count a gateway's tables; -1 without a database."""
    glue, database = aws.client("glue"), lake_database(PREFIX, gateway)
    if database not in {base["Name"] for base in glue.get_databases()["DatabaseList"]}:
        return -1
    return len(glue.get_tables(DatabaseName=database)["TableList"])


@pytest.mark.emulator
def test_lake_removal_removes_all_tables_and_object_versions_of_one_gateway_only(
    aws: Emulated,
) -> None:
    for gateway in ("trial", "trial2"):
        filled(aws, gateway)
    before = [key for key in versions(aws) if "trial2" in key]
    assert len(before) == 2 + 5 * len(OBJECT_KINDS)

    assert remove_from_lake(aws, "trial") == NOTHING  # type: ignore[arg-type]  # it has what is asked
    assert (tables(aws, "trial"), tables(aws, "trial2")) == (-1, 4)
    assert versions(aws) == before
    assert remove_from_lake(aws, "trial") == NOTHING  # type: ignore[arg-type]  # likewise


@pytest.mark.emulator
def test_tables_in_a_rest_catalogue_are_readable_and_removed_with_the_gateway(
    aws: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = NestedField(1, "n", StringType(), required=False)
    with start_iceberg_rest(tmp_path) as uri:
        described = LakeCatalogue("rest", uri).as_json()
        monkeypatch.setitem(aws.outputs, "LakeCatalogue", described)
        catalogue = load_catalog("lake", type="rest", uri=uri)
        for gateway in ("trial", "trial2"):
            database = lake_database(PREFIX, gateway)
            catalogue.create_namespace(database)
            for table in ("todos", "todos__changes"):
                catalogue.create_table((database, table), Schema(column))
        lake = Lake(aws, "trial")  # type: ignore[arg-type]  # it has what is asked
        assert lake.names() == ["todos", "todos__changes"]
        assert lake.read("todos").num_rows == 0
        with pytest.raises(UsageFault, match="not Glue's"):
            glue_views(aws)  # type: ignore[arg-type]  # likewise

        assert remove_from_lake(aws, "trial") == NOTHING  # type: ignore[arg-type]  # likewise
        assert catalogue.list_namespaces() == [(lake_database(PREFIX, "trial2"),)]
        assert len(catalogue.list_tables(lake_database(PREFIX, "trial2"))) == 2
        assert remove_from_lake(aws, "trial") == NOTHING  # type: ignore[arg-type]  # likewise


# --- all tables of a stack ------------------------------------------------------------------------


ID = "arn:aws:cloudformation:us-east-1:123456789012:stack/trial/1a2b3c4d"
OWN = {STACK: ID}
WAREHOUSE = "warehouse"


@dataclass(frozen=True)
class Table:
    """A table of the catalogue."""

    properties: dict[str, str]
    place: str

    def location(self) -> str:
        return f"s3://{WAREHOUSE}/{self.place}"


@dataclass
class Catalogue:
    """A REST catalogue, as PyIceberg shows it."""

    namespaces: dict[str, dict[str, Table]]
    purged: list[tuple[str, str]] = field(default_factory=list)

    def list_namespaces(self) -> list[tuple[str]]:
        return [(name,) for name in self.namespaces]

    def list_tables(self, namespace: str) -> list[tuple[str, str]]:
        return [(namespace, name) for name in self.namespaces[namespace]]

    def load_table(self, identifier: tuple[str, str]) -> Table:
        namespace, name = identifier
        return self.namespaces[namespace][name]

    def drop_table(self, identifier: tuple[str, str]) -> None:
        namespace, name = identifier
        del self.namespaces[namespace][name]

    def purge_table(self, identifier: tuple[str, str]) -> None:
        self.purged.append(identifier)
        self.drop_table(identifier)

    def drop_namespace(self, namespace: str) -> None:
        assert not self.namespaces[namespace], "a catalogue refuses one with tables"
        del self.namespaces[namespace]


class Stack:
    """The AWS side of a stack whose lake is elsewhere."""

    stack_id = ID

    def __init__(self, prefix: str) -> None:
        self.outputs = {"DatabasePrefix": prefix}

    def output(self, name: str) -> str:
        return self.outputs[name]

    def client(self, service: str) -> Any:
        return boto3.client(cast("Any", service), region_name="us-east-1")


PLACES = {
    "rest": LakeCatalogue(kind="rest", uri="https://catalogue.example", warehouse="w"),
    "s3tables": LakeCatalogue(
        kind="s3tables", warehouse="arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
    ),
}


def lake(
    monkeypatch: pytest.MonkeyPatch, kind: str, catalogue: Catalogue, prefix: str = "lakesync_1a2b"
) -> LakeTables:
    monkeypatch.setattr(removal, "described", lambda _: PLACES[kind])
    monkeypatch.setattr(removal, "open_catalogue", lambda _: catalogue)
    return LakeTables(cast("Any", Stack(prefix)), [])


def shared() -> Catalogue:
    """Return a catalogue with tables of the stack, of another with its prefix, and of others."""
    return Catalogue({
        "lakesync_1a2b_acme": {"todos": Table(OWN, "acme/todos"), "notes": Table(OWN, "acme/n")},
        "lakesync_1a2b_shop": {
            "orders": Table(OWN, "shop/orders"), "theirs": Table({STACK: "another"}, "shop/theirs"),
        },
        "lakesync_1a2b_empty": {},
        "lakesync_1a2bc": {"near": Table(OWN, "near")},
        "sales": {"facts": Table({}, "facts")},
    })  # fmt: skip


LEFT = {
    "lakesync_1a2b_shop": ["theirs"], "lakesync_1a2bc": ["near"], "sales": ["facts"],
}  # fmt: skip


def left(catalogue: Catalogue) -> dict[str, list[str]]:
    return {name: list(tables) for name, tables in catalogue.namespaces.items()}


@pytest.mark.parametrize("kind", PLACES)
def test_the_stacks_lake_tables_are_listed_apart_from_foreign_ones(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tables = lake(monkeypatch, kind, shared())

    assert tables.names() == [
        "lakesync_1a2b_acme.todos", "lakesync_1a2b_acme.notes", "lakesync_1a2b_shop.orders",
    ]  # fmt: skip
    assert ["lakesync_1a2b_shop.theirs" in each for each in tables.foreign()] == [True]


def test_dropping_tables_of_a_rest_catalogue_removes_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = shared()
    keys = ["acme/todos/data/1.parquet", "acme/n/metadata/1.json", "shop/orders/data/1.parquet"]
    kept = ["acme/todos2/data/1.parquet", "shop/theirs/data/1.parquet"]
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=WAREHOUSE)
        for key in (*keys, *kept):
            s3.put_object(Bucket=WAREHOUSE, Key=key, Body=b"1")
        tables = lake(monkeypatch, "rest", catalogue)
        tables.drop()
        tables.drop()

        there = [each["Key"] for each in s3.list_objects_v2(Bucket=WAREHOUSE)["Contents"]]
    assert there == kept
    assert (left(catalogue), catalogue.purged) == (LEFT, [])


def test_dropping_tables_of_s3_tables_purges_them(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = shared()
    tables = lake(monkeypatch, "s3tables", catalogue)
    tables.drop()
    tables.drop()

    assert left(catalogue) == LEFT
    assert len(catalogue.purged) == 3


def test_an_empty_namespace_under_a_configured_prefix_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = Catalogue({"mine_empty": {}, "mine_acme": {"todos": Table(OWN, "a")}})
    lake(monkeypatch, "s3tables", catalogue, "mine").drop()

    assert left(catalogue) == {"mine_empty": []}
