"""What a deleted gateway leaves in the lake and in old versions, dropped on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from lakesync.cli.input_output import UsageFault
from lakesync.cli.lake import Lake, glue_views
from lakesync.cli.removal import remove_from_lake
from lakesync.core.names import lake_database
from lakesync.maintenance.erasure import OBJECT_KINDS
from lakesync.materialise.glue_views import GlueViews
from lakesync.materialise.lake_catalogue import LakeCatalogue
from lakesync.materialise.lake_schema import STATE_TABLE, LakeColumn
from lakesync.materialise.views import ViewedTable
from tools.local_stack.aws_emulator import start_emulator
from tools.local_stack.iceberg_rest import start_iceberg_rest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "lake"
PREFIX = "lakesync_1a2b3c4d"
NOTHING = {"lake tables": 0, "object versions": 0}


class Emulated:
    """`lakesync.cli.connection.Aws` of an emulator."""

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
def aws() -> Iterator[Emulated]:
    with pytest.MonkeyPatch.context() as patch, start_emulator() as emulator:
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
