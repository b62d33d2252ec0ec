"""What no emulator shows of DynamoDB: locks, bills, what partitions take, tokens, limits."""

from __future__ import annotations

import json
from base64 import b64encode
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.scale.dynamo import Dynamo
from benchmarks.scale.expressions import UnknownSyntax, condition
from benchmarks.scale.partitions import Partitions
from benchmarks.scale.ports import OneCaller
from benchmarks.scale.updates import key_condition, update
from benchmarks.scale.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = tuple[int, dict[str, Any]]


def ask(dynamo: Dynamo, operation: str, request: dict[str, Any]) -> Answer:
    headers = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
    status, content = dynamo(headers, json.dumps(request).encode())
    return status, json.loads(content)


def key(sk: str, pk: str = "p") -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def put(sk: str, size: int = 1, pk: str = "p", **more: Any) -> dict[str, Any]:
    data = {"B": b64encode(b"x" * size).decode()}
    return {"Put": {"TableName": "t", "Item": {**key(sk, pk), "d": data}, **more}}


def transaction(*items: dict[str, Any], token: str = "") -> dict[str, Any]:
    named = {"ClientRequestToken": token} if token else {}
    return {"TransactItems": list(items), **named}


def codes(answer: Answer) -> list[str]:
    assert answer[1]["__type"].endswith("#TransactionCanceledException")
    return [reason["Code"] for reason in answer[1]["CancellationReasons"]]


@pytest.fixture
def dynamo() -> Dynamo:
    return Dynamo(OneCaller(), Random(0))


class Race:
    """Requests that begin at given moments of simulated time."""

    def __init__(self, partitions: Partitions | None = None) -> None:
        self.world = World(3)
        self.world.dynamo.partitions = partitions
        self.answers: dict[str, Answer] = {}
        self.ended_ms: dict[str, float] = {}

    def at(self, ms: float, name: str, operation: str, request: dict[str, Any]) -> None:
        def body() -> None:
            self.answers[name] = ask(self.world.dynamo, operation, request)
            self.ended_ms[name] = self.world.now_ms()

        self.world.spawn(body, ms)

    def run(self) -> dict[str, Answer]:
        self.world.run_until(10_000)
        return self.answers


# --- expressions


@pytest.mark.parametrize(
    "text",
    [
        "size(d) > :n", "a <> :n", "a.b = :n", "a[0] = :n", "contains(d, :n)", "a IN (:n)",
        "a = :n b", "a =", "(a = :n", "a = :n OR", "attribute_type(a, :n)", "",
    ],
)  # fmt: skip
def test_unknown_condition_raises(text: str) -> None:
    with pytest.raises(UnknownSyntax):
        condition(text)


@pytest.mark.parametrize(
    "text", ["DELETE a :n", "SET a", "SET a.b = :n", "SET a = list_append(a, :n)", "a = :n"]
)
def test_unknown_update_expression_raises(text: str) -> None:
    with pytest.raises(UnknownSyntax):
        update(text)


@pytest.mark.parametrize("text", ["sk = :s", "pk = :p OR sk = :s", "pk = :p AND c = :s", "pk > :p"])
def test_unknown_key_condition_raises(text: str) -> None:
    with pytest.raises(UnknownSyntax):
        key_condition(text)


def test_unknown_request_parameter_raises(dynamo: Dynamo) -> None:
    requests: dict[str, dict[str, Any]] = {
        "Query": {"TableName": "t", "KeyConditionExpression": "pk = :p", "FilterExpression": "x"},
        "PutItem": {"TableName": "t", "Item": key("r"), "Expected": {}},
        "UpdateItem": {"TableName": "t", "Key": key("r"), "AttributeUpdates": {}},
        "TransactWriteItems": {"TransactItems": [], "ReturnItemCollectionMetrics": "SIZE"},
    }
    for operation, request in requests.items():
        with pytest.raises(UnknownSyntax):
            ask(dynamo, operation, request)


def test_and_binds_tighter_than_or_and_not_binds_tightest() -> None:
    holds = condition("a = :x OR a = :y AND NOT b = :x")
    bound: Any = ({}, {":x": {"N": "1"}, ":y": {"N": "2"}})

    assert holds({"a": {"N": "1"}, "b": {"N": "1"}}, bound)
    assert holds({"a": {"N": "2"}}, bound)
    assert not holds({"a": {"N": "2"}, "b": {"N": "1"}}, bound)


# --- what is billed


def test_transaction_is_billed_twice_per_started_kb_of_the_larger_version(dynamo: Dynamo) -> None:
    ask(dynamo, "PutItem", put("large", 3_000)["Put"])
    assert dynamo.bill.write_units == 3

    ask(dynamo, "TransactWriteItems", transaction(put("large", 1), put("small", 1_500)))

    assert dynamo.bill.write_units == 3 + 2 * (3 + 2)


def test_failed_conditions_and_cancelled_transactions_are_billed(dynamo: Dynamo) -> None:
    new = {"ConditionExpression": "attribute_not_exists(pk)"}
    ask(dynamo, "PutItem", put("r", 1_500)["Put"])
    before = dynamo.bill.write_units

    status, answer = ask(dynamo, "PutItem", put("r", 1, **new)["Put"])
    assert (status, answer["__type"].rpartition("#")[2]) == (400, "ConditionalCheckFailedException")
    assert dynamo.bill.write_units - before == 2

    cancelled = ask(dynamo, "TransactWriteItems", transaction(put("r", 1, **new), put("other", 1)))
    assert codes(cancelled) == ["ConditionalCheckFailed", "None"]
    assert dynamo.bill.write_units - before == 2 + 2 * (2 + 1)


def test_reads_are_billed_per_four_kb_and_transactional_reads_twice(dynamo: Dynamo) -> None:
    for number in range(3):
        ask(dynamo, "PutItem", put(f"r{number}", 3_000)["Put"])
    query = {
        "TableName": "t", "KeyConditionExpression": "pk = :p", "ConsistentRead": True,
        "ExpressionAttributeValues": {":p": {"S": "p"}},
    }  # fmt: skip
    keys = [key("r0"), key("r1"), key("none")]

    ask(dynamo, "Query", query)
    assert dynamo.bill.read_units == 3  # 9 KB of one page
    ask(dynamo, "Query", {**query, "ConsistentRead": False})
    assert dynamo.bill.read_units == 3 + 1.5
    ask(dynamo, "BatchGetItem", {"RequestItems": {"t": {"Keys": keys, "ConsistentRead": True}}})
    assert dynamo.bill.read_units == 4.5 + 3
    ask(dynamo, "TransactGetItems", transaction(*({"Get": {"Key": k}} for k in keys)))
    assert dynamo.bill.read_units == 7.5 + 6


# --- transactions in time


def test_transactions_that_share_an_item_conflict_and_others_do_not() -> None:
    race = Race()
    race.at(0, "first", "TransactWriteItems", transaction(put("shared"), put("a")))
    race.at(5, "second", "TransactWriteItems", transaction(put("b"), put("shared")))
    race.at(5, "apart", "TransactWriteItems", transaction(put("c")))
    race.at(200, "later", "TransactWriteItems", transaction(put("shared"), put("b")))

    answers = race.run()

    assert {name for name, (status, _) in answers.items() if status == 200} == {
        "first", "apart", "later",
    }  # fmt: skip
    assert codes(answers["second"]) == ["None", "TransactionConflict"]
    assert race.world.dynamo.bill.refusals["TransactionConflict"] == 1


def test_transactions_in_opposite_order_may_cancel_each_other() -> None:
    """Both lock what the other one asks for next."""
    both_lost = 0
    for seed in range(30):
        race = Race()
        race.world = World(seed)
        for name, order in (("one", "xy"), ("other", "yx")):
            items = [put("r", pk=pk) for pk in order]
            race.at(0, name, "TransactWriteItems", transaction(*items))
        lost = sum(status == 400 for status, _ in race.run().values())
        assert lost in {1, 2}
        both_lost += lost == 2
    assert 0 < both_lost < 30


def test_during_a_transaction_on_an_item_a_write_is_refused_and_a_read_is_not() -> None:
    race = Race()
    race.at(0, "transaction", "TransactWriteItems", transaction(put("r"), put("s")))
    race.at(3, "write", "PutItem", put("r")["Put"])
    race.at(3, "read", "GetItem", {"TableName": "t", "Key": key("r")})
    race.at(1, "serialisable", "TransactGetItems", transaction({"Get": {"Key": key("r")}}))

    answers = race.run()

    assert answers["transaction"][0] == answers["read"][0] == 200
    assert answers["write"][1]["__type"].endswith("#TransactionConflictException")
    assert codes(answers["serialisable"]) == ["TransactionConflict"]


def test_items_of_a_transaction_become_visible_one_by_one_before_its_answer() -> None:
    torn = 0
    for seed in range(20):
        race = Race()
        race.world = World(seed)
        items = [put("r", pk=f"p{number}") for number in range(5)]
        race.at(0, "transaction", "TransactWriteItems", transaction(*items))
        seen: list[int] = []

        def look(race: Race = race, seen: list[int] = seen) -> None:
            seen.append(
                sum(race.world.dynamo.items.get((f"p{n}", "r")) is not None for n in range(5))
            )
            if "transaction" not in race.answers:
                race.world.later(0.1, look)

        race.world.later(0, look)
        race.run()
        assert seen == sorted(seen)
        assert (seen[0], seen[-1]) == (0, 5)
        torn += bool({1, 2, 3, 4} & set(seen))
    assert torn > 10


def test_transaction_completes_after_its_caller_has_gone() -> None:
    race = Race()
    race.at(0, "transaction", "TransactWriteItems", transaction(put("r"), token="t1"))
    race.world.later(5, lambda: race.world.scheduler.kill(race.world._process))

    assert race.run() == {}
    assert race.world.dynamo.items.get(("p", "r")) is not None


# --- tokens


def test_client_token_makes_a_transaction_happen_once(dynamo: Dynamo) -> None:
    once = transaction(put("r", ConditionExpression="attribute_not_exists(pk)"), token="t1")

    assert [ask(dynamo, "TransactWriteItems", once)[0] for _ in range(3)] == [200] * 3
    assert (dynamo.bill.write_units, dynamo.bill.read_units) == (2, 4)

    other = transaction(put("s"), token="t1")
    status, answer = ask(dynamo, "TransactWriteItems", other)
    assert (status, answer["__type"].rpartition("#")[2]) == (
        400, "IdempotentParameterMismatchException",
    )  # fmt: skip


def test_token_of_a_cancelled_transaction_can_be_used_again(dynamo: Dynamo) -> None:
    first = transaction(put("r", ConditionExpression="attribute_exists(pk)"), token="t1")
    assert ask(dynamo, "TransactWriteItems", first)[0] == 400
    ask(dynamo, "PutItem", put("r")["Put"])

    assert ask(dynamo, "TransactWriteItems", first)[0] == 200


def test_token_of_a_running_transaction_is_reported() -> None:
    race = Race()
    same = transaction(put("r"), token="t1")
    race.at(0, "first", "TransactWriteItems", same)
    race.at(1, "second", "TransactWriteItems", same)

    answers = race.run()

    assert answers["first"][0] == 200
    assert answers["second"][1]["__type"].endswith("#TransactionInProgressException")


# --- what partitions take


def throttled(partitions: Callable[[World], Partitions], per_s: int, seconds: int) -> list[float]:
    """Return the share of writes, of two keys in turn, that were refused in each second."""
    world = World(5)
    world.dynamo.partitions = partitions(world)
    refused = [0] * seconds
    for number in range(per_s * seconds):
        at_ms = number * 1_000 / per_s

        def write(number: int = number, at_ms: float = at_ms) -> None:
            status, _ = ask(world.dynamo, "PutItem", put(f"r{number % 2}", 900)["Put"])
            refused[int(at_ms / 1_000)] += status != 200

        world.spawn(write, at_ms)
    world.run_until(seconds * 1_000 + 1_000)
    return [count / per_s for count in refused]


def test_partition_throttles_beyond_a_thousand_write_units_a_second_after_a_burst() -> None:
    shares = throttled(lambda world: Partitions(world.now_ms), 1_500, 4)

    assert shares[0] == 0
    assert shares[3] == pytest.approx(1 / 3, abs=0.02)


def test_hot_collection_is_split_by_sort_keys_if_splitting_is_assumed() -> None:
    shares = throttled(lambda world: Partitions(world.now_ms, split_after_s=0.5), 1_500, 4)

    assert sum(shares[:3]) > 0
    assert shares[3] == 0


def test_transaction_throttled_by_a_partition_names_the_item() -> None:
    race = Race()
    race.world.dynamo.partitions = Partitions(race.world.now_ms)
    for number in range(3):
        items = [put(f"{number}-{place}", 100_000, pk="hot") for place in range(5)]
        race.at(number * 100, f"load{number}", "TransactWriteItems", transaction(*items))
    race.at(350, "last", "TransactWriteItems", transaction(put("r", pk="hot"), put("r", pk="cold")))

    answers = race.run()

    assert codes(answers["last"]) == ["ThrottlingError", "None"]
    assert race.world.dynamo.items.get(("cold", "r")) is None


# --- limits


def test_requests_beyond_dynamodbs_limits_are_refused(dynamo: Dynamo) -> None:
    for operation, request in {
        "TransactWriteItems": transaction(*(put(f"r{number}") for number in range(101))),
        "PutItem": put("r", 410_000)["Put"],
        "BatchGetItem": {"RequestItems": {"t": {"Keys": [key(f"r{n}") for n in range(101)]}}},
    }.items():
        status, answer = ask(dynamo, operation, request)
        assert (status, answer["__type"].rpartition("#")[2]) == (400, "ValidationException")
    twice = transaction(put("r"), put("r"))
    assert ask(dynamo, "TransactWriteItems", twice)[1]["__type"].endswith("#ValidationException")


def test_query_returns_a_megabyte_and_where_to_continue(dynamo: Dynamo) -> None:
    for number in range(5):
        ask(dynamo, "PutItem", put(f"r{number}", 300_000)["Put"])
    query: dict[str, Any] = {
        "TableName": "t", "KeyConditionExpression": "pk = :p", "ConsistentRead": True,
        "ExpressionAttributeValues": {":p": {"S": "p"}},
    }  # fmt: skip

    _, page = ask(dynamo, "Query", query)
    rest = ask(dynamo, "Query", {**query, "ExclusiveStartKey": page["LastEvaluatedKey"]})[1]

    assert (page["Count"], rest["Count"], "LastEvaluatedKey" in rest) == (4, 1, False)


# --- indexes


def test_index_holds_items_with_its_attribute_and_each_change_costs_a_unit(
    dynamo: Dynamo,
) -> None:
    waiting = {"TableName": "t", "UpdateExpression": "SET o = if_not_exists(o, :n)"}

    def wait(sk: str, since: int) -> float:
        before = dynamo.bill.write_units
        values = {":n": {"N": str(since)}}
        ask(dynamo, "UpdateItem", {**waiting, "Key": key(sk), "ExpressionAttributeValues": values})
        return dynamo.bill.write_units - before

    assert [wait("r1", 1), wait("r1", 2), wait("r2", 3)] == [2, 1, 2]
    scan = {"TableName": "t", "IndexName": "unflushed", "Limit": 1}
    first = ask(dynamo, "Scan", scan)[1]
    second = ask(dynamo, "Scan", {**scan, "ExclusiveStartKey": first["LastEvaluatedKey"]})[1]
    assert [page["Items"][0]["o"]["N"] for page in (first, second)] == ["1", "3"]

    done = {"TableName": "t", "Key": key("r1"), "UpdateExpression": "REMOVE o"}
    before = dynamo.bill.write_units
    ask(dynamo, "UpdateItem", done)
    assert dynamo.bill.write_units - before == 2
    assert ask(dynamo, "Scan", scan)[1]["Items"] == second["Items"]
