"""Writers that race for one item fare on the model as they do on real servers in real threads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import pytest

from benchmarks.scale.world import World
from tests.scale.test_model_answers import Asked
from tests.support.stores import TABLE

WRITERS = 8
WINS = 4
Send: TypeAlias = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


def transaction(prefix: str, writer: int, win: int, seen: int) -> dict[str, Any]:
    """Return the step of a shared counter, together with an item of the writer's own."""
    new = {"pk": {"S": f"{prefix}{writer}"}, "sk": {"S": f"{win}"}}
    return {
        "TransactItems": [
            {
                "Update": {
                    "TableName": TABLE,
                    "Key": {"pk": {"S": prefix}, "sk": {"S": "counter"}},
                    "UpdateExpression": "SET c = :next",
                    "ConditionExpression": "attribute_not_exists(pk) OR c = :seen",
                    "ExpressionAttributeValues": {
                        ":seen": {"N": str(seen)},
                        ":next": {"N": str(seen + 1)},
                    },
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                }
            },
            {"Put": {"TableName": TABLE, "Item": new}},
        ]
    }


def write(prefix: str, writer: int, send: Send) -> Counter[str]:
    """Win several times; returns how often, and what the writer was told when it lost."""
    counts: Counter[str] = Counter()
    seen = 0
    while counts["won"] < WINS:
        status, answer = send(
            "TransactWriteItems", transaction(prefix, writer, counts["won"], seen)
        )
        if status == 200:
            counts["won"] += 1
            seen += 1
            continue
        shared, own = answer["CancellationReasons"]
        assert own.get("Code", "None") == "None"
        counts[shared["Code"]] += 1
        if "Item" in shared:
            seen = int(shared["Item"]["c"]["N"])
    return counts


def check(counts: list[Counter[str]], send: Send, prefix: str) -> None:
    """Check that each win is one step, and that losing has the reasons that there are."""
    query = {
        "TableName": TABLE,
        "Key": {"pk": {"S": prefix}, "sk": {"S": "counter"}},
        "ConsistentRead": True,
    }
    total = sum(counts, Counter())
    assert send("GetItem", query)[1]["Item"]["c"]["N"] == str(WRITERS * WINS)
    assert total["won"] == WRITERS * WINS
    assert set(total) - {"won"} <= {"ConditionalCheckFailed", "TransactionConflict"}
    assert total["ConditionalCheckFailed"] > 0


@pytest.mark.emulator
@pytest.mark.parametrize("server", ["emulated_dynamodb", "dynamodb_local"])
def test_racing_threads_on_a_real_server_lose_no_update(
    request: pytest.FixtureRequest, server: str
) -> None:
    real = Asked(request.getfixturevalue(server))

    def send(operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, content = real(operation, json.dumps(request).encode())
        return status, json.loads(content)

    with ThreadPoolExecutor(WRITERS) as threads:
        counts = list(threads.map(lambda writer: write("race", writer, send), range(WRITERS)))

    check(counts, send, "race")


def test_racing_tasks_on_the_model_lose_no_update() -> None:
    world = World(1)

    def send(operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        status, content = world.dynamo(headers, json.dumps(request).encode())
        return status, json.loads(content)

    counts: list[Counter[str]] = []

    def win(writer: int) -> None:
        counts.append(write("race", writer, send))

    for writer in range(WRITERS):
        world.spawn(
            partial(lambda writer: counts.append(write("race", writer, send)), writer), writer
        )
    world.run_until(60_000)

    world.prepare(lambda: check(counts, send, "race"))
    # Of emulators none shows it: items are locked while a transaction is at them.
    assert sum(counts, Counter())["TransactionConflict"] > 0
