"""What each `LakeAdapter` does: in memory, on S3, on another endpoint with paths, in PostgreSQL.

S3 is moto in this process; the other endpoint is the AWS emulator, addressed as MinIO is. Neither
throttles or signs anybody out: those errors are given in S3's own words below.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore import exceptions as boto
from botocore.stub import Stubber
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto import mock_aws

from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.lake.s3_adapter import S3Adapter, s3_adapter
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    Retry,
)
from lakesync.systems.postgres.postgres_dialect import PostgresObjects
from lakesync.testing.lake_contract import LakeContract, check_pages
from tests.support.destinations import postgres_dialect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.lake.adapter import LakeAdapter

REGION = "us-east-1"
_numbers = itertools.count()
keys = st.text(st.sampled_from("ab/é\U0001f600\uffee .="), min_size=1, max_size=6).filter(
    lambda key: (
        not key.startswith("/") and "//" not in key and not set(key.split("/")) & {".", ".."}
    )
)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


@pytest.fixture(
    params=[
        "memory", "s3",
        pytest.param("emulator", marks=pytest.mark.emulator),
        pytest.param("postgres", marks=pytest.mark.emulator),
    ]
)  # fmt: skip
def lake(request: pytest.FixtureRequest) -> Iterator[LakeAdapter]:
    """An empty bucket of each kind."""
    bucket = f"lake-{next(_numbers)}"
    if request.param == "memory":
        yield MemoryAdapter()
    elif request.param == "s3":
        with mock_aws():
            boto3.client("s3").create_bucket(Bucket=bucket)
            yield s3_adapter(bucket, region=REGION)
    elif request.param == "postgres":
        database = request.getfixturevalue("postgres")
        dialect = postgres_dialect(database)
        schema = f"objects{next(_numbers)}"
        with closing(dialect.connect()) as connection:
            connection.cursor().execute(f"CREATE SCHEMA {schema}")
            connection.commit()
        own = replace(dialect, dsn=f"{dialect.dsn}?options=-csearch_path%3D{schema}")
        with closing(PostgresObjects(own)) as objects:
            yield objects
    else:
        address = request.getfixturevalue("emulator").endpoint
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket=bucket)
        yield s3_adapter(bucket, endpoint=address, region=REGION, path_style=True)


class TestObjectStores(LakeContract):
    """Those of this repository."""


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(keys, unique=True, max_size=8), size=st.integers(1, 4))
def test_pages_list_keys_in_byte_order(lake: LakeAdapter, names: list[str], size: int) -> None:
    check_pages(lake, names, size)


def test_more_objects_than_one_request_holds_are_deleted(
    lake: LakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of three here: S3 takes a thousand, and gives as many (`test_lake_adapters`)."""
    monkeypatch.setattr("lakesync.adapters.lake.s3_adapter.PAGE_KEYS_MAX", 3)
    names = [f"many/{number}" for number in range(8)]
    for name in names:
        lake.put_object(name, b"", "text/plain")
    assert lake.list_page("many/", keys_max=7).has_more
    lake.delete_objects(iter(names))
    assert lake.list_objects("many/") == []


# --- S3's errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "retry"),
    [
        ("AccessDenied", AdapterRefused, Retry.NEVER),
        ("NoSuchBucket", AdapterRefused, Retry.NEVER),
        ("NotImplemented", AdapterRefused, Retry.NEVER),
        ("ExpiredToken", AdapterRefused, Retry.NEVER),
        ("SlowDown", AdapterQuotaExceeded, Retry.LATER),
        ("RequestTimeout", AdapterTimedOut, Retry.LATER),
        ("ConditionalRequestConflict", AdapterTimedOut, Retry.LATER),
        ("InternalError", AdapterFailed, Retry.LATER),
    ],
)
def test_s3_error_codes_are_translated(code: str, kind: type[AdapterFailed], retry: Retry) -> None:
    client = boto3.client("s3", region_name=REGION)
    calls: list[tuple[str, Any]] = [
        ("put_object", lambda s3: s3.put_new_object("k", b"", "text/plain")),
        ("list_objects_v2", lambda s3: s3.list_page("")),
        ("delete_objects", lambda s3: s3.delete_objects(["k"])),
        ("get_object", lambda s3: s3.get_object("k")),
    ]
    for operation, ask in calls:
        with Stubber(client) as stub:
            stub.add_client_error(operation, code, http_status_code=400)
            with pytest.raises(AdapterFailed, match=code) as caught:
                ask(S3Adapter("lake", client))
        assert type(caught.value) is kind
        assert caught.value.retry is retry


def test_failed_deletion_of_one_object_is_reported() -> None:
    client = boto3.client("s3", region_name=REGION)
    with Stubber(client) as stub:
        stub.add_response(
            "delete_objects", {"Errors": [{"Key": "k", "Code": "AccessDenied", "Message": "no"}]}
        )
        with pytest.raises(AdapterRefused):
            S3Adapter("lake", client).delete_objects(["k", "l"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (boto.NoCredentialsError(), AdapterRefused),
        (boto.ReadTimeoutError(endpoint_url="x"), AdapterTimedOut),
        (boto.ConnectTimeoutError(endpoint_url="x"), AdapterTimedOut),
        (boto.EndpointConnectionError(endpoint_url="x"), AdapterUnreachable),
    ],
)
def test_unreachable_store_is_reported(
    theirs: Exception, ours: type[AdapterFailed], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def list_objects_v2(self, **_: object) -> None:
            raise theirs

    with pytest.raises(AdapterFailed) as caught:
        S3Adapter("lake", Silent()).list_page("")
    assert type(caught.value) is ours


def test_endpoint_and_path_style_are_passed_to_the_client() -> None:
    minio = s3_adapter("lake", endpoint="http://minio:9000", region=REGION, path_style=True)
    url = minio._client.generate_presigned_url("get_object", Params={"Bucket": "lake", "Key": "k"})
    assert url.startswith("http://minio:9000/lake/k?")
    r2 = s3_adapter("lake", endpoint="https://account.r2.cloudflarestorage.com", region="auto")
    assert r2._client.meta.endpoint_url == "https://account.r2.cloudflarestorage.com"
