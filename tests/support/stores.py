"""Every implementation of the buffer, ready to use: in memory, on the emulator, on DynamoDB Local.

A server is started once for the whole run, by the first test that needs it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest

from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from tools.local_stack.aws_emulator import start_emulator
from tools.local_stack.dynamodb_local import start_dynamodb_local

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


class Servers:
    """Starts each server once and keeps it until the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.emulator = cache(self._emulator)
        self.dynamodb_local = cache(self._dynamodb_local)

    def _emulator(self) -> Address:
        return with_table(self._stack.enter_context(start_emulator()).client_options())

    def _dynamodb_local(self) -> Address:
        return with_table(self._stack.enter_context(start_dynamodb_local()).client_options())

    def close(self) -> None:
        self._stack.close()


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
