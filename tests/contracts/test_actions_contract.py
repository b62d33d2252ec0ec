"""What every store of action handlers, and of the runs of actions, promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.admin_stores import ItemHandlers, ItemRuns
from lakesync.ports import ActionKey, ActionRun, RunState

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import ActionRuns, HandlerStore

NOW = 1_800_000_000_000


@pytest.fixture
def handlers(item_store: ItemStore) -> HandlerStore:
    return ItemHandlers(item_store)


@pytest.fixture
def runs(item_store: ItemStore) -> ActionRuns:
    return ItemRuns(item_store)


def begun(owner: str, action_id: str = "a1", outcome: bytes = b"") -> ActionRun:
    return ActionRun(action_id, "digest", RunState.RUNNING, owner, NOW + 60_000, outcome)


def key(gateway: str, action_id: str = "a1", named: str = "", client: str = "c") -> ActionKey:
    return ActionKey(gateway, client, action_id, named)


@pytest.mark.law("X6")
def test_handler_name_is_taken_until_replaced_or_removed(
    handlers: HandlerStore, gateway: str
) -> None:
    assert handlers.add(gateway, "b", b"first", replace=False)
    assert not handlers.add(gateway, "b", b"second", replace=False)
    assert handlers.add(gateway, "a", b"other", replace=True)
    assert handlers.add(f"{gateway}x", "b", b"of another gateway", replace=False)
    assert [*map(tuple, handlers.handlers(gateway))] == [("a", b"other"), ("b", b"first")]

    assert handlers.add(gateway, "b", b"third", replace=True)
    assert [each.definition for each in handlers.handlers(gateway)] == [b"other", b"third"]
    assert handlers.remove(gateway, "b")
    assert not handlers.remove(gateway, "b")
    assert [each.name for each in handlers.handlers(gateway)] == ["a"]


@pytest.mark.law("X1")
def test_run_begins_once_and_only_its_owner_ends_it(runs: ActionRuns, gateway: str) -> None:
    first = begun("o1")
    assert runs.get(key(gateway)) is None
    assert runs.begin(key(gateway), None, first, NOW)
    assert not runs.begin(key(gateway), None, begun("o2"), NOW)
    assert runs.get(key(gateway)) == first
    assert not runs.end(key(gateway), replace(first, owner="o2"), NOW)

    opened = replace(first, state=RunState.OPEN, until_ms=0)
    assert runs.end(key(gateway), opened, NOW)
    assert not runs.end(key(gateway), replace(first, state=RunState.ENDED), NOW)
    assert runs.begin(key(gateway), opened, begun("o3"), NOW)
    assert not runs.begin(key(gateway), opened, begun("o4"), NOW)
    ended = replace(begun("o3"), state=RunState.ENDED, outcome=b"\x00done")
    assert runs.end(key(gateway), ended, NOW)
    assert runs.get(key(gateway)) == ended


@pytest.mark.law("X1")
def test_idempotency_key_belongs_to_the_first_action_that_used_it(
    runs: ActionRuns, gateway: str
) -> None:
    assert runs.begin(key(gateway, "a1", "k"), None, begun("o1"), NOW)

    seen = runs.get(key(gateway, "a2", "k"))
    assert seen == begun("o1")
    assert not runs.begin(key(gateway, "a2", "k"), None, begun("o2", "a2"), NOW)
    assert runs.get(key(gateway, "a2")) is None
    assert runs.begin(key(gateway, "a2", "k"), seen, begun("o3"), NOW)
    assert runs.get(key(gateway, "a1")) == begun("o3")


@pytest.mark.law("X1")
def test_run_keys_are_separate_by_client_and_gateway(runs: ActionRuns, gateway: str) -> None:
    odd = 'c|a|"\n\u00fc'
    places = [key(gateway), key(gateway, client="d"), key(f"{gateway}x"), key(gateway, client=odd),
              key(gateway, "c", client="ca1"), key(gateway, "a1|k")]  # fmt: skip
    for number, place in enumerate(places):
        assert runs.begin(place, None, begun(f"o{number}", place.action_id), NOW)
    owners = [runs.get(place) for place in places]
    assert [run.owner for run in owners if run] == [f"o{n}" for n in range(len(places))]


@pytest.mark.law("X1")
def test_concurrent_begins_of_a_run_succeed_once(runs: ActionRuns, gateway: str) -> None:
    def begin(number: int) -> bool:
        action = f"a{number % 2}"
        return runs.begin(key(gateway, action, "k"), None, begun(f"o{number}", action), NOW)

    with ThreadPoolExecutor(6) as threads:
        assert [*threads.map(begin, range(6))].count(True) == 1


@pytest.mark.law("X5")
def test_calls_are_limited_per_minute(runs: ActionRuns, gateway: str) -> None:
    counted = [runs.count(gateway, "c|out", NOW, 2) for _ in range(3)]

    assert counted == [True, True, False]
    assert runs.count(gateway, "d|out", NOW, 2)
    assert runs.count(gateway, "c|out", NOW + 60_000, 2)
