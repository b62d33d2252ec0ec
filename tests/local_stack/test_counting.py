"""The emulator counts at its door what AWS bills: units, requests, messages."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

import boto3
import pytest

from lakesync.materialise.iceberg_table import LakeFileIO
from tools.local_stack.emulator.count_patches import PATH, dynamo_units, steps

if TYPE_CHECKING:
    from tools.local_stack.aws_emulator import Emulator


def _counts(emulator: Emulator) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", emulator.port, timeout=30)
    connection.request("GET", PATH)
    totals: dict[str, float] = json.loads(connection.getresponse().read())
    connection.close()
    return totals


@pytest.mark.emulator
def test_small_lake_file_is_written_in_one_request_and_a_large_one_completely(
    emulator: Emulator,
) -> None:
    s3 = boto3.client("s3", **emulator.client_options())
    s3.create_bucket(Bucket="counted")
    files = LakeFileIO({
        "s3.endpoint": emulator.endpoint, "s3.region": emulator.region,
        "s3.access-key-id": "test", "s3.secret-access-key": "test",
    })  # fmt: skip
    before = _counts(emulator)
    with files.new_output("s3://counted/small").create() as small:
        small.write(b"x" * 1_000)
    after = _counts(emulator)
    large = bytes(range(256)) * 50_000
    with files.new_output("s3://counted/large").create() as written:
        written.write(large)

    assert after["s3.PUT"] - before["s3.PUT"] == 1
    assert after.get("s3.POST", 0) == before.get("s3.POST", 0)
    assert s3.get_object(Bucket="counted", Key="large")["Body"].read() == large
    assert s3.get_object(Bucket="counted", Key="small")["Body"].read() == b"x" * 1_000


PUT = {"Put": {"TableName": "t", "Item": {"pk": {"S": "a"}, "v": {"B": "eHh4"}}}}


@pytest.mark.parametrize(
    ("operation", "request_", "answer", "units"),
    [
        ("TransactWriteItems", {"TransactItems": [PUT, PUT]}, {}, ("writes", 4.0)),
        ("UpdateItem", {"TableName": "t"}, {}, ("writes", 1)),
        ("PutItem", {"TableName": "t", "Item": {"pk": {"S": "a" * 1_100}}}, {}, ("writes", 2)),
        ("Query", {"TableName": "t", "ConsistentRead": True}, {"Items": []}, ("reads", 1.0)),
        ("Query", {"TableName": "t"}, {"Items": [{"pk": {"S": "a" * 5_000}}]}, ("reads", 1.0)),
        ("DescribeTable", {"TableName": "t"}, {}, ("none", 0.0)),
    ],
)
def test_dynamodb_units_follow_the_documented_rules(
    operation: str, request_: object, answer: object, units: tuple[str, float]
) -> None:
    made = dynamo_units(operation, json.dumps(request_).encode(), json.dumps(answer).encode())

    assert made == units


def test_messages_are_metered_in_steps_of_32_kb() -> None:
    assert [steps(size) for size in (0, 1, 32_768, 32_769, 131_072)] == [1, 1, 1, 2, 4]
