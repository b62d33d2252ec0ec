"""Faults that no emulator makes, put between the caller and the emulator: nothing lost, doubled."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.caller import Network
from lakesync.errors import Contention, InternalError, LakeSyncError, Unavailable, Unreachable
from lakesync.log.declare import Declare, admitting
from lakesync.log.lanes import Limits
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.gateways import GivenTime, SeededChance, pulled, pusher

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.buffer.caller import Send
    from tests.support.stores import Address

pytestmark = pytest.mark.emulator

WRITE = "TransactWriteItems"
DEADLINE_MS = Limits().commit_deadline_ms
Answer = tuple[int, bytes]


@pytest.fixture
def address(emulated_dynamodb: Address, credentials: None) -> Address:
    return emulated_dynamodb


@pytest.fixture
def gateway(address: Address, gateway: str) -> str:
    """A gateway whose tables are known, so that a push is its one transaction."""
    declare = Declare(
        address.buffer(),
        wall_clock=lambda: WALL_MS - 1_000,
        sleep_ms=lambda _: None,
        chance=SeededChance(),
    )
    declare(gateway, lambda config: admitting(config, None, [insert(n=1, k=1, m=1)]))
    return gateway


class Faulty:
    """The network, with faults: what is planned for an operation's next calls."""

    def __init__(self, address: Address) -> None:
        self._network = Network(address.endpoint)
        self.planned: dict[str, list[Callable[[Send, dict[str, str], bytes], Answer]]] = {}
        self.calls: Counter[str] = Counter()

    def plan(
        self, operation: str, *faults: Callable[[Send, dict[str, str], bytes], Answer]
    ) -> None:
        """Let the next calls of an operation meet these faults, one each."""
        self.planned.setdefault(operation, []).extend(faults)

    def __call__(self, headers: dict[str, str], body: bytes) -> Answer:
        """Post, or fail as planned."""
        operation = headers["X-Amz-Target"].partition(".")[2]
        self.calls[operation] += 1
        waiting = self.planned.get(operation)
        if waiting:
            return waiting.pop(0)(self._network, headers, body)
        return self._network(headers, body)


def refused(kind: str, status: int = 400, **more: object) -> Callable[..., Answer]:
    """Make a fault in which DynamoDB refuses and does nothing."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{kind}", "message": "…", **more}
    return lambda *_: (status, json.dumps(body).encode())


def cancelled(code: str) -> Callable[..., Answer]:
    """Make a fault in which DynamoDB cancels a transaction."""
    reasons = [{"Code": code, "Message": "…"}, {"Code": "None"}, {"Code": "None"}]
    return refused("TransactionCanceledException", CancellationReasons=reasons)


def never_sent(*_: object) -> Answer:
    """Lose the connection before the request."""
    raise Unreachable("no answer came back: ConnectionRefusedError")


def answer_lost(send: Send, headers: dict[str, str], body: bytes) -> Answer:
    """Carry the request out, and lose the connection before the answer."""
    send(headers, body)
    raise Unreachable("no answer came back: TimeoutError")


def answer_cut(send: Send, headers: dict[str, str], body: bytes) -> Answer:
    """Carry the request out, and cut its answer off."""
    status, content = send(headers, body)
    return status, content[: len(content) // 2]


HARMLESS: dict[str, Callable[..., Answer]] = {
    "conflict": cancelled("TransactionConflict"),
    "throttled in a transaction": cancelled("ThrottlingError"),
    "no throughput in a transaction": cancelled("ProvisionedThroughputExceeded"),
    "throttled": refused("ThrottlingException"),
    "no throughput": refused("ProvisionedThroughputExceededException"),
    "in progress": refused("TransactionInProgressException"),
    "internal": refused("InternalServerError", 500),
    "a gateway's page": lambda *_: (502, b"<html>Bad Gateway</html>"),
    "expired": refused("ExpiredTokenException"),
    "never sent": never_sent,
    "answer lost": answer_lost,
    "answer cut": answer_cut,
}
"""What passes: the same request may succeed in a moment."""

OF_READS = {
    name: fault
    for name, fault in HARMLESS.items()
    if name not in {"conflict", "in progress"} and "transaction" not in name
}


@pytest.mark.law("B4")
@pytest.mark.parametrize("fault", HARMLESS.values(), ids=HARMLESS.keys())
def test_push_survives_transient_faults_and_is_counted_once(
    address: Address, gateway: str, fault: Callable[..., Answer]
) -> None:
    send = Faulty(address)
    time = GivenTime(WALL_MS)
    service = pusher(address.buffer(send=send), time_=time)
    send.plan(WRITE, fault, fault, fault)
    deltas = [insert(f"r{number}", at=at_ms(number), n=number) for number in range(5)]

    receipt = service.push(gateway, push(*deltas))

    assert (receipt.accepted, receipt.outcomes) == (5, ())
    assert pulled(address.buffer(), gateway) == deltas
    assert send.calls[WRITE] == 4
    assert 0 < time.now_ms - WALL_MS < DEADLINE_MS


@pytest.mark.parametrize("fault", OF_READS.values(), ids=OF_READS.keys())
@pytest.mark.parametrize("operation", ["GetItem", "BatchGetItem"])
def test_reads_survive_transient_faults(
    address: Address, gateway: str, operation: str, fault: Callable[..., Answer]
) -> None:
    send = Faulty(address)
    service = pusher(address.buffer(send=send), time_=GivenTime(WALL_MS))
    send.plan(operation, fault, fault)

    assert service.push(gateway, push(insert(at=at_ms(1), n=1))).accepted == 1


@pytest.mark.law("A4")
def test_serializable_mark_read_retries_transaction_conflicts(
    address: Address, gateway: str
) -> None:
    send = Faulty(address)
    buffer = address.buffer(send=send)
    wanted = [("main", "phone")]
    conflict = cancelled("TransactionConflict")
    send.plan("TransactGetItems", conflict, conflict, throttled := HARMLESS["throttled"])

    assert buffer.read_marks_serializable(gateway, wanted) == {}
    assert send.calls["TransactGetItems"] == 4
    send.plan("TransactGetItems", throttled, *[conflict] * 3)
    with pytest.raises(Contention):
        buffer.read_marks_serializable(gateway, wanted)


@pytest.mark.law("B4")
def test_commit_with_a_lost_answer_counts_once_despite_a_later_writer(
    address: Address, gateway: str
) -> None:
    send = Faulty(address)
    service = pusher(address.buffer(send=send), time_=GivenTime(WALL_MS))
    other = pusher(address.buffer(), seed=1, time_=GivenTime(WALL_MS + 1))
    theirs = update(at=at_ms(2), client="other", m=1)

    def lost_and_overtaken(inner: Send, headers: dict[str, str], body: bytes) -> Answer:
        inner(headers, body)
        assert other.push(gateway, push(theirs, client="other")).accepted == 1
        raise Unreachable("no answer came back: TimeoutError")

    send.plan(WRITE, lost_and_overtaken)
    mine = insert(at=at_ms(1), n=1)
    receipt = service.push(gateway, push(mine))

    assert (receipt.accepted, receipt.outcomes) == (1, ())
    assert pulled(address.buffer(), gateway) == [mine, theirs]
    again = update(at=at_ms(3), n=2)
    assert service.push(gateway, push(again)).accepted == 1
    assert pulled(address.buffer(), gateway) == [mine, theirs, again]


@pytest.mark.law("B2")
def test_commit_that_never_arrived_is_merged_again_after_losing_the_race(
    address: Address, gateway: str
) -> None:
    send = Faulty(address)
    service = pusher(address.buffer(send=send), time_=GivenTime(WALL_MS))
    other = pusher(address.buffer(), seed=1, time_=GivenTime(WALL_MS + 1))
    theirs = update(at=at_ms(2), client="other", m=1)

    def overtaken(*_: object) -> Answer:
        assert other.push(gateway, push(theirs, client="other")).accepted == 1
        raise Unreachable("no answer came back: ConnectionRefusedError")

    send.plan(WRITE, overtaken)
    mine = insert(at=at_ms(1), n=1)

    assert service.push(gateway, push(mine)).accepted == 1
    assert pulled(address.buffer(), gateway) == [theirs, mine]


@pytest.mark.law("B5")
@pytest.mark.parametrize("fault", HARMLESS.values(), ids=HARMLESS.keys())
def test_persistent_fault_ends_at_the_deadline_with_nothing_partly_written(
    address: Address, gateway: str, fault: Callable[..., Answer]
) -> None:
    send = Faulty(address)
    time = GivenTime(WALL_MS)
    service = pusher(address.buffer(send=send), time_=time)
    send.plan(WRITE, *[fault] * 500)
    deltas = [insert(f"r{number}", at=at_ms(number), n=number) for number in range(5)]

    with pytest.raises(Unavailable) as result:
        service.push(gateway, push(*deltas))

    assert (result.value.status, result.value.retry_after_s) == (503, 1)
    assert DEADLINE_MS <= time.now_ms - WALL_MS < DEADLINE_MS + 1_000
    happened = fault in {answer_lost, answer_cut}
    assert pulled(address.buffer(), gateway) == (deltas if happened else [])
    send.planned.clear()
    receipt = service.push(gateway, push(*deltas))
    assert receipt.accepted == 5
    assert len(receipt.outcomes) == (5 if happened else 0)
    assert pulled(address.buffer(), gateway) == deltas


@pytest.mark.parametrize("code", ["ValidationError", "ItemCollectionSizeLimitExceeded"])
def test_permanent_error_is_an_internal_error_and_is_not_retried(
    address: Address, gateway: str, code: str
) -> None:
    send = Faulty(address)
    service = pusher(address.buffer(send=send), time_=GivenTime(WALL_MS))
    send.plan(WRITE, cancelled(code))

    with pytest.raises(InternalError):
        service.push(gateway, push(insert(at=at_ms(1), n=1)))

    assert send.calls[WRITE] == 1


def test_head_in_a_conflicting_transaction_is_not_raised_and_raises_no_error(
    address: Address, gateway: str
) -> None:
    send = Faulty(address)
    buffer = address.buffer(send=send)
    pusher(buffer, time_=GivenTime(WALL_MS)).push(gateway, push(insert(at=at_ms(1), n=1)))
    head = buffer.heads(gateway)["main"]
    conflict = refused("TransactionConflictException")
    send.plan("UpdateItem", *[conflict] * 3)

    assert not buffer.raise_head(gateway, "main", head, head.commit + 1, head)
    assert not buffer.close_lane(gateway, "main.1", None, 5)
    assert not buffer.change_lanes(gateway, head, head.lanes.opening("main", 2), head.commit + 1)
    assert buffer.all_heads(gateway) == {"main": head}
    assert buffer.raise_head(gateway, "main", head, head.commit + 1, head)


def test_unprocessed_keys_are_requested_again(address: Address, gateway: str) -> None:
    send = Faulty(address)
    buffer = address.buffer(send=send)
    deltas = [insert(f"r{number}", at=at_ms(number), n=number) for number in range(9)]
    pusher(buffer, time_=GivenTime(WALL_MS)).push(gateway, push(*deltas))
    keys = [("todos", f"r{number}") for number in range(9)]

    def all_but(count: int) -> Callable[..., Answer]:
        def fault(inner: Send, headers: dict[str, str], body: bytes) -> Answer:
            request = json.loads(body)
            ((table, wanted),) = request["RequestItems"].items()
            left, wanted["Keys"] = wanted["Keys"][count:], wanted["Keys"][:count]
            if not wanted["Keys"]:
                empty = {"Responses": {}, "UnprocessedKeys": {table: {"Keys": left}}}
                return 200, json.dumps(empty).encode()
            signed = address.caller(send=inner)("BatchGetItem", json.dumps(request).encode())
            signed["UnprocessedKeys"] = {table: {"Keys": left}}
            return 200, json.dumps(signed).encode()

        return fault

    send.plan("BatchGetItem", all_but(4), all_but(1), all_but(0), all_but(2))

    assert buffer.rows(gateway, keys).keys() == set(keys)
    send.plan("BatchGetItem", *[all_but(0)] * 4)
    with pytest.raises(Unavailable):
        buffer.rows(gateway, keys)


@pytest.mark.law("B4")
@pytest.mark.parametrize("seed", range(3))
def test_every_delta_is_logged_once_under_random_faults(
    address: Address, gateway: str, seed: int
) -> None:
    chance = random.Random(seed)

    class Storm(Faulty):
        def __call__(self, headers: dict[str, str], body: bytes) -> Answer:
            operation = headers["X-Amz-Target"].partition(".")[2]
            if chance.random() < 0.2:
                faults = HARMLESS if operation == WRITE else OF_READS
                self.plan(operation, chance.choice(list(faults.values())))
            return super().__call__(headers, body)

    time = GivenTime(WALL_MS)
    services = [
        pusher(address.buffer(send=Storm(address)), seed=number, time_=time) for number in range(3)
    ]
    pushed = []
    for number in range(40):
        client = f"c{number % 3}"
        delta = insert(f"r{number % 4}", at=at_ms(number), client=client, n=number)
        pushed.append(delta)
        for _ in range(20):
            with suppress(LakeSyncError):
                services[number % 3].push(gateway, push(delta, client=client))
                break

    deltas = pulled(address.buffer(), gateway)
    assert Counter(d.delta_id for d in deltas) == Counter(d.delta_id for d in pushed)


def test_transaction_conflict_raises_contention(address: Address, gateway: str) -> None:
    send = Faulty(address)
    send.plan(WRITE, cancelled("TransactionConflict"))
    service = pusher(
        address.buffer(send=send), time_=GivenTime(WALL_MS), limits=Limits(commit_deadline_ms=0)
    )
    with pytest.raises(Contention):
        service.push(gateway, push(insert(at=at_ms(1), n=1)))
