"""A stack of a few resources on an emulator of its own, for commands that look one up."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3

from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Yield an emulator on which the template stands under the name."""
    with start_emulator() as started:
        client = boto3.client("cloudformation", **started.client_options())
        client.create_stack(StackName=name, TemplateBody=json.dumps(template))
        client.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
        )
        yield started
