"""The buffer's table in a DynamoDB that runs on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest

from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.buffer.caller import Send

TABLE = "lakesync-buffer"
NOT_MODELLED = [
    "memory",
    pytest.param("emulator", marks=pytest.mark.emulator),
    pytest.param("dynamodb_local", marks=pytest.mark.emulator),
]
"""The stores of contracts whose requests the model in `benchmarks.scale` does not know."""
UNFLUSHED_INDEX: Any = {
    "IndexName": "unflushed",
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "o", "KeyType": "RANGE"},
    ],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
"""As the template has it."""


class Address(NamedTuple):
    region: str
    endpoint: str

    def caller(
        self, *, send: Send | None = None, on_capacity: Callable[[str, float], None] | None = None
    ) -> DynamoCaller:
        return DynamoCaller(self.region, self.endpoint, send=send, on_capacity=on_capacity)

    def buffer(
        self, *, send: Send | None = None, on_capacity: Callable[[str, float], None] | None = None
    ) -> DynamoBuffer:
        return DynamoBuffer(TABLE, self.caller(send=send, on_capacity=on_capacity))


def with_table(options: Any) -> Address:
    """Make the buffer's table in a DynamoDB, and give where that is."""
    client = boto3.client("dynamodb", **options)
    client.create_table(
        TableName=TABLE,
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "pk", "AttributeType": "S"},
            {"AttributeName": "sk", "AttributeType": "S"},
            {"AttributeName": "o", "AttributeType": "N"},
        ],
        GlobalSecondaryIndexes=[UNFLUSHED_INDEX],
        BillingMode="PAY_PER_REQUEST",
    )
    client.close()
    return Address(options["region_name"], options["endpoint_url"])
