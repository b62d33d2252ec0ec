"""The model of DynamoDB answers as DynamoDB Local and the emulator do, and bills as they report."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.scale.dynamo import Dynamo
from benchmarks.scale.ports import OneCaller
from lakesync.buffer.caller import Credentials, Network, Signer
from tests.scale.requests import Drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.stores import Address

pytestmark = pytest.mark.emulator
REQUESTS = 250
SEEDS = range(4)


class Asked:
    """A DynamoDB that is asked over the network."""

    def __init__(self, address: Address) -> None:
        self._signer = Signer(address.endpoint, "dynamodb", address.region)
        self._network = Network(address.endpoint)

    def __call__(self, operation: str, body: bytes) -> tuple[int, bytes]:
        target = f"DynamoDB_20120810.{operation}"
        credentials = Credentials("test", "test", None)
        headers = self._signer.headers(target, body, credentials, "20260131T235959Z")
        return self._network(headers, body)


def modelled() -> Callable[[str, bytes], tuple[int, bytes]]:
    """Return a model that is asked in the same way."""
    dynamo = Dynamo(OneCaller(), Random(0))
    return lambda operation, body: dynamo({"X-Amz-Target": f"DynamoDB_20120810.{operation}"}, body)


def understood(status: int, content: bytes) -> dict[str, Any]:
    """Return what an answer says, without its wording and where no order is promised."""
    answer = json.loads(content)
    answer.pop("ConsumedCapacity", None)
    if status != 200:
        kind = answer["__type"].rpartition("#")[2]
        said: dict[str, Any] = {"refused": kind}
        if kind == "TransactionCanceledException":
            said["reasons"] = [
                (reason.get("Code", "None"), reason.get("Item") or None)
                for reason in answer["CancellationReasons"]
            ]
            # An update that cannot be carried out: DynamoDB Local refuses the request as a whole.
            if any(code == "ValidationError" for code, _ in said["reasons"]):
                return {"refused": "ValidationException"}
        elif answer.get("Item"):
            said["item"] = answer["Item"]
        return said
    for items in answer.get("Responses", {}).values() if "UnprocessedKeys" in answer else ():
        items.sort(key=lambda item: str((item["pk"], item["sk"])))
    return {name: value for name, value in answer.items() if value not in ({}, [], None)}


@pytest.fixture
def real(server: str, request: pytest.FixtureRequest) -> Asked:
    return Asked(request.getfixturevalue(server))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("server", ["emulated_dynamodb", "dynamodb_local"])
def test_the_model_answers_as_a_real_server_does(real: Asked, server: str, seed: int) -> None:
    model, drawn = modelled(), Drawn(Random(seed), f"{server}{seed}-")
    refused = 0
    for number in range(REQUESTS):
        operation, request = drawn.request()
        body = json.dumps(request).encode()

        expected, answered = understood(*real(operation, body)), understood(*model(operation, body))

        if server == "emulated_dynamodb":  # it gives one at the very end of a range too
            expected.pop("LastEvaluatedKey", None)
            answered.pop("LastEvaluatedKey", None)
        assert answered == expected, f"{number}: {operation} {json.dumps(request, indent=1)}"
        refused += "refused" in answered
    assert REQUESTS / 10 < refused < REQUESTS / 1.5


WITH_UNITS = b',"ReturnConsumedCapacity":"TOTAL"}'


@pytest.mark.parametrize(
    ("server", "operations"),
    [
        # Each where the server reports what DynamoDB's rule gives.
        ("emulated_dynamodb", {"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems"}),
        ("dynamodb_local", {"PutItem", "UpdateItem", "DeleteItem", "GetItem", "Query"}),
    ],
)
def test_the_model_bills_what_a_real_server_reports(
    real: Asked, server: str, operations: set[str]
) -> None:
    model, drawn = modelled(), Drawn(Random(9), f"{server}-units-")
    compared: Counter[str] = Counter()
    for number in range(2 * REQUESTS):
        operation, request = drawn.request()
        body = json.dumps(request).encode()[:-1] + WITH_UNITS

        (status, expected), (_, answered) = real(operation, body), model(operation, body)

        # DynamoDB Local says 0 of a query that finds nothing; it is billed as the least there is.
        if status == 200 and operation in operations and units(expected):
            compared[operation] += 1
            reported, billed = units(expected), units(answered)
            assert billed == reported, f"{number}: {operation} {json.dumps(request, indent=1)}"
    assert set(compared) == operations
    assert min(compared.values()) >= 5


def units(answer: bytes) -> float:
    consumed = json.loads(answer)["ConsumedCapacity"]
    parts = consumed if isinstance(consumed, list) else [consumed]
    return float(sum(part["CapacityUnits"] for part in parts))
