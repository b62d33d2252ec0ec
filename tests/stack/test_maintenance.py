"""Maintenance on the deployed stack: the job by hand and by its state machine, with their roles."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.commands import erase, gateways
from lakesync.core.attachments import attachment
from lakesync.core.delta import Op
from tests.support.deployed import Tenant, executed
from tests.support.waiting import drained

if TYPE_CHECKING:
    from typer.testing import Result

    from lakesync.analysis.connection import Aws
    from lakesync.core.attachments import Attachment
    from tests.support.deployed import Glue
    from tools.local_stack.stack import Stack


def materialised(tenant: Tenant, glue: Glue) -> None:
    # An announcement that comes while a run is at work waits out the queue's visibility time-out.
    glue.settle()
    tenant.flush()
    drained(tenant.waiting)


def reports(stack: Stack, tenant: Tenant, *words: str) -> list[Any]:
    done = run(stack, "lake", *words, "--gateway", tenant.gateway)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run(stack: Stack, *words: str) -> Result:
    environment = {
        "AWS_ENDPOINT_URL": stack.endpoint,
        "LAKESYNC_URL": stack.http,
        "AWS_REGION": stack.region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    return CliRunner().invoke(app, [*words, "--stack", stack.stack, "--json"], env=environment)


def files_with(tenant: Tenant, value: str) -> list[str]:
    """Return the Parquet files of the bucket, old versions too, that hold a text of this tenant."""
    client, bucket = tenant.aws.client("s3"), tenant.aws.output("LakeBucket")
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket)
    versions = [version for page in pages for version in page.get("Versions", [])]
    keys = []
    for version in versions:
        place = {"Key": version["Key"], "VersionId": version["VersionId"]}
        if place["Key"].endswith(".parquet"):
            body = client.get_object(Bucket=bucket, **place)["Body"].read()
            if value in str(pq.read_table(pa.BufferReader(body)).to_pylist()):
                keys.append(place["Key"])
    return keys


def uploaded(tenant: Tenant, content: bytes) -> Attachment:
    digest = hashlib.sha256(content).hexdigest()
    file = attachment(uuid4().hex, digest, len(content), "text/plain")
    with tenant.transport() as transport:
        [request] = transport.ask_upload(file, [], "").requests
        transport.send_bytes(request, content)
        assert transport.ask_upload(file, [], "").stored
    return file


def versions_of_attachments(tenant: Tenant) -> list[str]:
    """Return the names of all attachments that there are or were, as far as versions are kept."""
    prefix = f"attachments/{tenant.gateway}/"
    listed = tenant.aws.client("s3").list_object_versions(
        Bucket=tenant.aws.output("LakeBucket"), Prefix=prefix
    )
    return [version["Key"].removeprefix(prefix) for version in listed.get("Versions", [])]


@pytest.mark.law("L17")
def test_maintenance_rewrites_files_with_dead_rows_and_the_lake_keeps_working(
    stack: Stack, aws: Aws, glue: Glue
) -> None:
    tenant = Tenant(stack)
    tenant.push(tenant.make(Op.INSERT, f"r{n}", {"n": n}) for n in range(60))
    materialised(tenant, glue)
    # A new column, so that Spark merges them: the function rewrites files and leaves no dead rows.
    tenant.push(tenant.make(Op.UPDATE, f"r{n}", {"n": -n, "m": n}) for n in range(20))
    materialised(tenant, glue)
    glue.settle()
    [plan, _] = reports(stack, tenant, "maintain", "--dry-run")
    assert plan["pays"] == ["rewrite files"]

    [report] = reports(stack, tenant, "maintain", "--table", "todos")

    assert [each["outcome"] for each in report["each"]] == ["done", "done"]
    assert report["each"][0]["before"]["dead_rows"] == 20
    [rows, _] = reports(stack, tenant, "status")
    assert (rows["files"], rows["delete files"], rows["dead rows"]) == (1, 0, 0)
    assert tenant.lake_rows() == tenant.expected()

    tenant.push([tenant.make(Op.DELETE, "r59")])
    materialised(tenant, glue)
    assert executed(aws, "MaintainStateMachineArn")["status"] == "SUCCEEDED"
    assert tenant.lake_rows() == tenant.expected()


@pytest.mark.law("E6", "E7", "E8", "E11")
def test_erased_rows_are_removed_from_the_lake_with_all_old_versions(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = Tenant(stack)
    ann, bob = (f"{name}-{tenant.gateway}" for name in ("ann", "bob"))
    users = {"u1": ann, "u2": bob, "u3": ann}
    photos = {name: uploaded(tenant, name.encode()) for name in (ann, bob)}
    tenant.push(
        tenant.make(Op.INSERT, row, {"name": name, "photo": str(photos[name])}, table="users")
        for row, name in users.items()
    )
    tenant.flush()
    assert files_with(tenant, ann) != []
    now_ms = gateways.now_ms
    monkeypatch.setattr(erase, "now_ms", lambda: now_ms() + 61_000)  # the minute has passed

    done = run(stack, "gateways", "erase", tenant.gateway, "users", "u1", "u3", "--yes")

    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rows"] == 2
    assert {"log", "batches", "attachments", "lake", "old versions"} <= report["left"].keys()
    assert set(report["left"].values()) == {0}
    assert sum(table["removed"] for table in report["lake"]["tables"]) >= 2
    assert report["lake"]["versionsRemoved"] > 0
    assert files_with(tenant, ann) == []
    assert files_with(tenant, bob) != []
    shown = {"name": json.dumps(bob), "photo": json.dumps(str(photos[bob]))}
    assert tenant.lake_rows("users") == {"u2": shown}
    assert report["attachments"] == {"removed": [photos[ann].file_name], "shared": []}
    assert versions_of_attachments(tenant) == [photos[bob].file_name]
