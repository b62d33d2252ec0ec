"""Old versions of the lake's objects go, on the emulator; what is there stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest

from lakesync.materialise import work_queue
from lakesync.materialise.work_queue import LakeStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.aws_emulator import Emulator

BUCKET = "old-versions"


@pytest.fixture(scope="module")
def s3(emulator: Emulator) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        make: Any = boto3.client
        client = make("s3", **emulator.client_options())
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield client


def bodies(s3: Any) -> list[tuple[str, bytes]]:
    """Return the key and the body of every version that there is."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    return sorted(
        (one["Key"], s3.get_object(Bucket=BUCKET, **version_of(one))["Body"].read())
        for page in pages
        for one in page.get("Versions", [])
    )


def version_of(one: dict[str, Any]) -> dict[str, str]:
    return {"Key": one["Key"], "VersionId": one["VersionId"]}


@pytest.mark.law("E7")
def test_removing_old_versions_keeps_current_objects_and_restores_no_deleted_one(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "VERSIONS_REMOVED_MAX", 2)
    store = LakeStore(s3, BUCKET)
    for prefix in ("checkpoints/acme/", "checkpoints/acme2/"):
        for key, body in [
            ("a", b"old"),
            ("a", b"older"),
            ("a", b"new"),
            ("gone", b"ann"),
            ("b", b"b"),
        ]:
            s3.put_object(Bucket=BUCKET, Key=prefix + key, Body=body)
        s3.delete_object(Bucket=BUCKET, Key=f"{prefix}gone")
    others = [one for one in bodies(s3) if one[0].startswith("checkpoints/acme2/")]

    assert store.remove_old_versions("checkpoints/acme/") == 3

    assert list(store.old_versions("checkpoints/acme/")) == []
    assert store.remove_old_versions("checkpoints/acme/") == 0
    kept = [("checkpoints/acme/a", b"new"), ("checkpoints/acme/b", b"b")]
    assert bodies(s3) == sorted([*kept, *others])
    assert store.read("checkpoints/acme/gone") is None


@pytest.mark.law("E7")
def test_erasure_request_is_removed_with_all_its_versions(s3: Any) -> None:
    store = LakeStore(s3, BUCKET)
    for body in (b"ann", b"ann again"):
        s3.put_object(Bucket=BUCKET, Key="maintenance/erase-1.json", Body=body)

    for _ in range(2):
        store.forget("maintenance/erase-1.json")

        assert store.read("maintenance/erase-1.json") is None
        assert [one for one in bodies(s3) if one[0].startswith("maintenance/")] == []
