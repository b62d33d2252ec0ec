"""The lake's adapters on S3 and SQS, and batches as Parquet."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow.parquet as pq
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.adapters.lake.s3 import S3Objects, SqsQueue
from lakesync.core.clock import STAMP_MAX
from lakesync.core.deliveries import announcement
from lakesync.errors import AdapterFailed, NotFound, Retry
from lakesync.ports import BatchRow
from lakesync.runtime.tasks import close_request, flush_request, scheduled_request
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "us-east-1"


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with mock_aws():
        yield


@pytest.fixture
def objects() -> S3Objects:
    client = boto3.client("s3", region_name=REGION)
    client.create_bucket(Bucket="lake")
    return S3Objects("lake", client)


def test_stored_object_is_read_back_and_storing_again_changes_nothing(objects: S3Objects) -> None:
    for _ in range(2):
        objects.put_object("staging/g/\u00e9.parquet", b"\x00bytes", "application/x")

    assert objects.get_object("staging/g/\u00e9.parquet") == b"\x00bytes"
    assert objects.list_objects("staging/") == ["staging/g/\u00e9.parquet"]


def test_more_objects_than_one_page_are_listed_in_order(objects: S3Objects) -> None:
    keys = [f"claims/{number:04d}" for number in range(1_005)]
    for key in reversed(keys):
        objects.put_object(key, b"", "text/plain")
    objects.put_object("other/1", b"", "text/plain")

    assert objects.list_objects("claims/") == keys
    assert objects.list_objects("nothing/") == []


def test_missing_object_raises_not_found_and_deleting_it_is_allowed(objects: S3Objects) -> None:
    with pytest.raises(NotFound):
        objects.get_object("nowhere")

    objects.delete_object("nowhere")
    objects.put_object("once", b"", "text/plain")
    objects.delete_object("once")
    with pytest.raises(NotFound):
        objects.get_object("once")


def test_range_read_returns_the_requested_bytes(objects: S3Objects) -> None:
    objects.put_object("k", b"0123456789", "text/plain")

    assert objects.get_range("k", 0, 3) == b"012"
    assert objects.get_range("k", 8, 100) == b"89"
    for key, start in (("k", 10), ("nowhere", 0)):
        with pytest.raises(NotFound):
            objects.get_range(key, start, 1)


@pytest.mark.parametrize("code", ["SlowDown", "AccessDenied", "InternalError"])
def test_s3_refusal_raises_a_retryable_error_with_its_code(code: str) -> None:
    client = boto3.client("s3", region_name=REGION)
    with Stubber(client) as stub:
        stub.add_client_error("put_object", code, http_status_code=503)
        with pytest.raises(AdapterFailed, match=code) as refused:
            S3Objects("lake", client).put_object("k", b"", "text/plain")

    assert refused.value.retry is Retry.LATER


def test_unreachable_s3_and_sqs_raise_adapter_failed() -> None:
    nowhere: dict[str, Any] = {"region_name": REGION, "endpoint_url": "http://127.0.0.1:1"}
    with mock_aws(config={"core": {"passthrough": {"urls": [".*"]}}}):
        s3 = boto3.client("s3", **nowhere)
        sqs = boto3.client("sqs", **nowhere)
        with pytest.raises(AdapterFailed, match="reached"):
            S3Objects("lake", s3).list_objects("")
        with pytest.raises(AdapterFailed, match="SQS"):
            SqsQueue("http://127.0.0.1:1/1/q", sqs).send("message")


def test_sent_message_is_received() -> None:
    client = boto3.client("sqs", region_name=REGION)
    url = client.create_queue(QueueName="announcements")["QueueUrl"]

    SqsQueue(url, client).send('{"version": 1}')

    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == '{"version": 1}'


@pytest.mark.parametrize(
    ("body", "group"),
    [
        (flush_request("acme"), "acme"),
        (scheduled_request("acme"), "acme"),
        (close_request("acme", 7), "acme"),
        (announcement("claims/acme/todos/1-2.json", "staging/acme/todos/1-2.parquet"), "acme"),
        (announcement("deliveries/acme/warehouse/"), "acme"),
        ('{"replayed": true}', None),
        ('{"gateway": "not one"}', None),
        ('{"gateway": {"id": "acme"}}', None),
        ('["acme"]', None),
        ("acme", None),
    ],
)
def test_message_group_is_the_gateway(body: str, group: str | None) -> None:
    client = boto3.client("sqs", region_name=REGION)
    url = client.create_queue(QueueName="fair")["QueueUrl"]

    SqsQueue(url, client).send(body)
    SqsQueue(url, client).send_all([body])

    messages = client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"]
    )["Messages"]
    assert [message["Body"] for message in messages] == [body, body]
    assert [each.get("Attributes", {}).get("MessageGroupId") for each in messages] == [group] * 2


def test_all_messages_of_a_queue_that_delays_them_are_delayed() -> None:
    client = boto3.client("sqs", region_name=REGION)
    url = client.create_queue(QueueName="delayed")["QueueUrl"]

    SqsQueue(url, client, 60).send("one")
    SqsQueue(url, client, 60).send_all(["two"])

    assert "Messages" not in client.receive_message(QueueUrl=url, WaitTimeSeconds=0)


def test_send_to_a_missing_queue_raises_adapter_failed() -> None:
    client = boto3.client("sqs", region_name=REGION)

    with pytest.raises(AdapterFailed):
        SqsQueue("https://sqs.us-east-1.amazonaws.com/1/none", client).send("message")


def row(ordinal: int, *columns: tuple[str, bytes], op: str = "UPDATE") -> BatchRow:
    return BatchRow(STAMP_MAX, ordinal, op, "\u00e9|", "phone", STAMP_MAX, "ab" * 32, columns)


COLUMNS = {"Title": "c_title_1234567890", "n": "n"}


def test_parquet_batch_distinguishes_null_from_absent_and_keeps_text() -> None:
    rows = [
        row(0, ("Title", '"\U0001f600\\u0001"'.encode()), ("n", b"null")),
        row(1, ("n", b"1e+21")),
        row(2, op="DELETE"),
    ]
    table = pq.read_table(io.BytesIO(ParquetEncoder().encode(rows, COLUMNS))).to_pylist()

    assert [line["n"] for line in table] == ["null", "1e+21", None]
    assert [line["c_title_1234567890"] for line in table] == ['"\U0001f600\\u0001"', None, None]
    assert table[0]["_commit"] == table[0]["_hlc"] == STAMP_MAX
    assert table[0]["_row_id"] == "\u00e9|"
    assert [line["_ordinal"] for line in table] == [0, 1, 2]
    assert table[2]["_op"] == "DELETE"


def test_parquet_encoding_is_deterministic() -> None:
    rows = [row(number, ("n", b"%d" % number)) for number in range(100)]

    assert ParquetEncoder().encode(rows, COLUMNS) == ParquetEncoder().encode(rows, COLUMNS)


def test_batch_of_deletes_has_no_table_columns() -> None:
    table = pq.read_table(io.BytesIO(ParquetEncoder().encode([row(0, op="DELETE")], {})))

    assert all(name.startswith("_") for name in some(table.column_names))
