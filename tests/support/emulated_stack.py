"""A stack of a few resources on an emulator of its own, for commands that look one up."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
from pyiceberg.catalog import load_catalog

from lakesync.buffer.admin_stores import ItemAudit
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo_items import DynamoItemStore
from lakesync.ports import AuditQuery
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from lakesync.ports import AuditRecord
    from tools.local_stack.aws_emulator import Emulator


PLAIN_TABLE: Final[dict[str, Any]] = {
    "BillingMode": "PAY_PER_REQUEST",
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")
    ],
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
}
"""A table that is keyed as those of the stack are."""


@contextmanager
def emulated_stack(name: str, template: dict[str, Any]) -> Iterator[Emulator]:
    with start_emulator() as started:
        client = boto3.client("cloudformation", **started.client_options())
        client.create_stack(StackName=name, TemplateBody=json.dumps(template))
        client.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        yield started


def lead_to(
    emulator: Emulator, stack: str, gateway: str, folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Have the standard variables lead to a stack; in the folder there is no stack file."""
    for name, value in emulator.environment().items():
        patch.setenv(name, value)
    patch.setenv("LAKESYNC_STACK", stack)
    patch.setenv("LAKESYNC_GATEWAY", gateway)
    patch.chdir(folder)


def output(emulator: Emulator, stack: str, name: str) -> str:
    """Return an output of a stack."""
    client = boto3.client("cloudformation", **emulator.client_options())
    outputs = client.describe_stacks(StackName=stack)["Stacks"][0]["Outputs"]
    return next(each["OutputValue"] for each in outputs if each["OutputKey"] == name)


def items_of(emulator: Emulator, table: str) -> DynamoItemStore:
    """Return the items of a table."""
    options = emulator.client_options()
    return DynamoItemStore(table, DynamoCaller(options["region_name"], options["endpoint_url"]))


def recorded(
    emulator: Emulator, stack: str, gateway: str, operation: str = ""
) -> list[AuditRecord]:
    """Return the records of an operation, or of all, the latest first."""
    audit = ItemAudit(items_of(emulator, output(emulator, stack, "AuditTable")))
    return audit.records(gateway, AuditQuery(operation=operation))[0]


def catalogue_of(emulator: Emulator) -> Any:
    """Return Glue's catalogue, as PyIceberg opens it."""
    return load_catalog(
        "lake",
        **{
            "type": "glue",
            "glue.endpoint": emulator.endpoint,
            "s3.endpoint": emulator.endpoint,
            "client.region": emulator.client_options()["region_name"],
            "client.access-key-id": "test",
            "client.secret-access-key": "test",
        },
    )
