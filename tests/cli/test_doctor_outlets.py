"""What the doctor says of destinations, connectors and polled flows."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.cli.doctor.progress import (
    Outlet,
    Source,
    check_connectors,
    check_destinations,
    connectors_state,
    destinations_state,
    source_of,
)
from lakesync.connectors.registry import Definition
from lakesync.connectors.state import Fault, PollState
from lakesync.core.clock import stamp
from lakesync.gateway.destination_admin import DestinationAdmin
from tests.support.builders import insert, push
from tests.support.gateways import pusher
from tests.support.lake import Messages, Objects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.doctor import Diagnosis

NOW_S = 1_800_000_000.0
NOW_MS = int(NOW_S * 1000)


def said(diagnoses: Sequence[Diagnosis]) -> list[tuple[str, str]]:
    return [(str(one.verdict), one.what) for one in diagnoses]


class Stack:
    """A deployment whose stores are in memory."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.now_s = NOW_S
        self.memory, self.items = MemoryBuffer(), MemoryItemStore()
        self.connectors = ItemConnectors(self.items)
        self.aws = SimpleNamespace(
            output=lambda name: name, buffer=lambda _: self.memory, items=lambda _: self.items
        )
        self._keys = keys

    def part(self, parameter: str, place: int, default: int) -> int:
        return {("AlarmBounds", 2): 600}.get((parameter, place), default)

    def client(self, _: str) -> Any:
        def paginate(*, Bucket: str, Prefix: str) -> list[dict[str, Any]]:  # noqa: N803 - boto3's names
            assert Bucket == "LakeBucket"
            return [{"Contents": [{"Key": k} for k in self._keys if k.startswith(Prefix)]}, {}]

        return SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=paginate))


def claim(destination: str, age_s: float, *, failed: bool = False) -> str:
    last = stamp(NOW_MS - int(age_s * 1000))
    kind = "deliveries-failed" if failed else "deliveries"
    return f"{kind}/acme/{destination}/todos/{last - 1:020d}-{last:020d}.json"


def test_waiting_claims_of_a_destination_are_reported_by_the_oldest() -> None:
    keys = [
        claim("down", 60), claim("down", 7_300), claim("fine", 30), claim("paused", 9_000),
        "deliveries/acme/new/fill.json", claim("down", 10, failed=True),
        claim("gone", 10, failed=True), "deliveries/what-is-this",
    ]  # fmt: skip
    stack: Any = Stack(keys)
    admin = DestinationAdmin(stack.memory, Objects(), Messages(), wall_clock=lambda: NOW_MS)
    pusher(stack.memory).push("acme", push(insert("r1", at=1, n=1)))
    admin.declare("acme", "paused", {"kind": "postgres", "secret": "paused"})
    admin.set_paused("acme", "paused", paused=True)

    assert said(check_destinations(stack)) == [
        ("wrong", "acme/down: 1 claim could not succeed, and were set aside"),
        ("wrong", "acme/down: 2 claims waiting, one for 2 h"),
        ("wrong", "acme/gone: 1 claim could not succeed, and were set aside"),
        ("well", "acme/paused: 1 claim waiting, as it is paused"),
    ]
    assert all(one.do for one in check_destinations(stack) if one.verdict == "wrong")


def test_destinations_and_connectors_not_all_looked_at_are_unchecked() -> None:
    assert [one[0] for one in said(destinations_state([], 60))] == ["well"]
    in_time = [Outlet("a/b", 1, 5, paused=False)]
    assert [one[0] for one in said(destinations_state(in_time, 60))] == ["well"]
    assert [one[0] for one in said(destinations_state([], 60, more=True))] == ["unchecked"]
    assert [one[0] for one in said(connectors_state([]))] == ["well"]
    assert [one[0] for one in said(connectors_state([], more=True))] == ["unchecked"]


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        (Source("a/jira", paused=False), [("well", "1 connector polled without a fault")]),
        (Source("a/jira", paused=True, fault="X: y"), [("well", "a/jira is paused")]),
        (Source("a/jira", paused=False, fault="X: y"), [("wrong", "a/jira met a fault: X: y")]),
        (
            Source("a/jira", paused=False, late_s=7_300),
            [("wrong", "a/jira was not polled to its end for 2 h")],
        ),
        (Source("a/jira", paused=False, dead_letters=3), [("wrong", "a/jira: 3 rows refused")]),
    ],
)  # fmt: skip
def test_a_connector_with_a_fault_delay_or_dead_letters_is_reported(
    source: Source, findings: list[tuple[str, str]]
) -> None:
    assert said(connectors_state([source])) == findings
    assert all(one.do for one in connectors_state([source]) if one.verdict == "wrong")


@pytest.mark.parametrize(
    ("state", "late"),
    [
        (PollState(), False),
        (PollState(polled_ms=NOW_MS - 40 * 60_000), False),
        (PollState(polled_ms=NOW_MS - 61 * 60_000), True),
        (PollState(polled_ms=NOW_MS - 61 * 60_000, wait_until_ms=NOW_MS - 60_000), False),
    ],
)
def test_a_connector_is_late_after_three_intervals_unless_told_to_wait(
    state: PollState, *, late: bool
) -> None:
    store = ItemConnectors(MemoryItemStore())
    store.add("acme", "jira", Definition("jira", {}, every_minutes=15).to_json(), 0)
    leased = store.lease("acme", "jira", NOW_MS, NOW_MS + 1)
    assert leased
    store.save("acme", "jira", leased.lease, state.to_json(), 0)
    [stored] = store.connectors("acme")

    assert bool(source_of("acme", stored, NOW_S).late_s) is late


def test_connectors_and_polled_flows_of_all_gateways_are_checked() -> None:
    stack: Any = Stack()
    for gateway in ("acme", "blue"):
        pusher(stack.memory).push(gateway, push(insert("r1", at=1, n=1)))
    stack.connectors.add("acme", "jira", Definition("jira", {}).to_json(), 0)
    flow = {"source": {"connector": "jira", "configuration": {}}}
    stack.connectors.add("blue", "moves", Definition("flow", flow).to_json(), 0)
    leased = stack.connectors.lease("blue", "moves", NOW_MS, NOW_MS + 1)
    fault = PollState(fault=Fault("ADAPTER_REFUSED", "no", NOW_MS))
    stack.connectors.save("blue", "moves", leased.lease, fault.to_json(), 0)

    assert json.loads(fault.to_json())["fault"]["code"] == "ADAPTER_REFUSED"
    assert said(check_connectors(stack)) == [
        ("wrong", "blue/moves met a fault: ADAPTER_REFUSED: no")
    ]
