"""Connectors keep nothing of erased rows: neither dead letters nor pages that were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors import Storage, missing_rows
from lakesync.connectors import poll as poll_module
from lakesync.connectors.missing_rows import Listing
from lakesync.connectors.state import DeadLetters, PollState, erase_rows, kept_of_row, state_from
from lakesync.errors import ValidationFailed
from lakesync.systems.dlt import extraction
from lakesync.testing.connector_contract import Reader
from tests.support.builders import insert
from tests.support.dlt_sources import Api
from tests.support.lake import Objects
from tests.support.sources import SqlSource
from tests.support.vendors.world import World

if TYPE_CHECKING:
    from tools.local_stack.databases import Database

GATEWAY, NAME, NOW_MS = "g", "c", 1_800_000_000_000
SECRET = "the value that has to go"
ANN = ("people", "ann")


def registered(name: str = NAME, state: bytes = b"") -> ItemConnectors:
    """Return a store with one connector, and how far it is."""
    store = ItemConnectors(MemoryItemStore())
    store.add(GATEWAY, name, b"{}", 0)
    save(store, state, name)
    return store


def save(store: ItemConnectors, state: bytes, name: str = NAME) -> None:
    leased = store.lease(GATEWAY, name, NOW_MS, NOW_MS + 1)
    assert leased
    store.save(GATEWAY, name, leased.lease, state, 0)


def now() -> int:
    return NOW_MS


def later() -> int:
    return NOW_MS + 60_000


def bearing(objects: Objects) -> list[str]:
    """Return the objects in which the value stands."""
    return [key for key, body in objects.bodies.items() if SECRET.encode() in body]


def lists_of(rows: dict[str, dict[str, Any]]) -> Listing:
    return Listing(lambda _: (list(rows.items()), None), lambda row: row in rows)


@pytest.mark.law("E10")
def test_dead_letter_of_an_erased_row_is_removed_and_uncounted() -> None:
    objects, store = Objects(), registered(state=PollState(dead_letters=2).to_json())
    letters = DeadLetters(Storage(objects, GATEWAY, NAME))
    for row in ("ann", "bob"):
        delta = insert(row, at=1, table="people", title=SECRET if row == "ann" else "b")
        letters.add("people", row, ValidationFailed(f"no {row}"), delta)
    assert kept_of_row(objects, GATEWAY, ANN) == 1
    assert kept_of_row(objects, GATEWAY, ("other", "ann")) == 0

    assert erase_rows(store, objects, GATEWAY, [ANN, ("people", "nobody")], now) == []

    assert (kept_of_row(objects, GATEWAY, ANN), bearing(objects)) == (0, [])
    stored = store.connector(GATEWAY, NAME)
    assert stored
    assert state_from(stored.state).dead_letters == 1
    assert stored.leased_until_ms == 0
    assert [one["rowId"] for one in DeadLetters(letters._storage).first(9)] == ["bob"]


@pytest.mark.law("E10")
def test_last_page_of_a_listing_loses_the_erased_row_and_keeps_its_comparison_state() -> None:
    objects, rows = Objects(), {"ann": {"mail": SECRET}, "bob": {"mail": "b"}}
    storage = Storage(objects, GATEWAY, NAME)
    first = missing_rows.read_listing("users", lists_of(rows), storage, "", 1)
    assert [change.row_id for change in first.changes] == ["ann", "bob"]
    assert kept_of_row(objects, GATEWAY, ANN) == 1

    assert erase_rows(registered(), objects, GATEWAY, [ANN], now) == []

    assert (kept_of_row(objects, GATEWAY, ANN), bearing(objects)) == (0, [])
    assert missing_rows.read_listing("users", lists_of(rows), storage, "", 2).changes == (), (
        "it did not change"
    )


@pytest.mark.law("E10")
def test_erasure_waits_for_a_running_poll_whose_page_may_be_read_again() -> None:
    objects, rows = Objects(), {"ann": {"mail": SECRET}, "bob": {"mail": "b"}}
    storage = Storage(objects, GATEWAY, NAME)
    given = missing_rows.read_listing("users", lists_of(rows), storage, "", 1)
    store = registered(state=PollState(poll_ms=1).to_json())

    assert erase_rows(store, objects, GATEWAY, [ANN], now) == [NAME]
    assert missing_rows.read_listing("users", lists_of({}), storage, "", 1) == given
    assert erase_rows(store, objects, GATEWAY, [("people", "else")], now) == [], "of no concern"

    assert store.lease(GATEWAY, NAME, NOW_MS, NOW_MS + 60_000)
    assert erase_rows(store, objects, GATEWAY, [ANN], now) == [NAME], "it is being polled"
    assert erase_rows(store, objects, GATEWAY, [ANN], later) == [NAME]
    save(store, PollState(polled_ms=1).to_json())
    assert erase_rows(store, objects, GATEWAY, [ANN], now) == []
    assert bearing(objects) == []


@pytest.mark.law("E10")
def test_erasure_waits_only_for_tables_whose_page_is_unfinished() -> None:
    objects, rows = Objects(), {"ann": {"mail": SECRET}}
    missing_rows.read_listing("users", lists_of(rows), Storage(objects, GATEWAY, NAME), "", 1)
    store = registered(state=PollState(polled_ms=2, begun={"users": 1}).to_json())
    assert erase_rows(store, objects, GATEWAY, [ANN], now) == [NAME]

    save(store, PollState(polled_ms=2, begun={"others": 1}).to_json())
    assert erase_rows(store, objects, GATEWAY, [ANN], now) == []
    assert bearing(objects) == []


@pytest.mark.law("E10")
def test_erasure_that_loses_the_lease_overwrites_nothing() -> None:
    objects, rows = Objects(), {"ann": {"mail": SECRET}}
    storage = Storage(objects, GATEWAY, NAME)
    missing_rows.read_listing("users", lists_of(rows), storage, "", 1)
    store, before = registered(), dict(objects.bodies)
    times = iter([NOW_MS, NOW_MS + 60_000])

    def slow() -> int:
        if (ms := next(times, NOW_MS + 60_000)) != NOW_MS:
            store.lease(GATEWAY, NAME, ms, ms + 60_000)  # a poll begins meanwhile
        return ms

    assert erase_rows(store, objects, GATEWAY, [ANN], slow) == [NAME]
    assert objects.bodies == before


@pytest.mark.emulator
@pytest.mark.law("E10")
def test_ranges_read_by_difference_lose_the_erased_row(postgres: Database) -> None:
    source = SqlSource(postgres, "postgres", by_time=False)
    try:
        source.put({"1": SECRET, "2": "b"})
        reader = Reader(source)
        reader.poll()
        objects: Any = source.storage._objects
        assert kept_of_row(objects, GATEWAY, (source.table, "1")) == 1

        store = registered(source.storage.name)
        assert erase_rows(store, objects, GATEWAY, [(source.table, "1")], now) == []

        assert bearing(objects) == []
        assert kept_of_row(objects, GATEWAY, (source.table, "1")) == 0
        source.put({"3": "c"})
        source.delete("1")
        reader.poll()
        assert reader.rows == {"2": "b", "3": "c"}
    finally:
        source.close()


@pytest.mark.law("E10")
def test_erasure_clears_delivered_extraction_parts_and_waits_for_undelivered_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll_module, "PAGE_ROWS_MAX", 2)
    monkeypatch.setattr(extraction, "_EXTRACT_PARTS", 100)
    with Api(by_time=True) as api:
        api.put({"1": SECRET, "2": "b", "3": "c", "4": SECRET, "5": "e"})
        world = World(api, {"orders": "o"})
        world.poll_to_the_end()
        assert kept_of_row(world.objects, GATEWAY, ("orders", "5")) == 1, "the last part"
        store = registered(state=world.saved)

        for row in "145":
            assert erase_rows(store, world.objects, GATEWAY, [("orders", row)], now) == []
            assert kept_of_row(world.objects, GATEWAY, ("orders", row)) == 0

        state = state_from(world.saved)
        number, _, given = state.cursors["orders"].partition(":")
        state.cursors["orders"] = f"{number}:{int(given) - 1}"
        part = [[["9", {"value": SECRET}]], []]
        storage = Storage(world.objects, GATEWAY, NAME)
        path = next(each for each in storage.paths() if each[-1] == "extracted")
        storage.write(part, *path[:-1], f"part{int(given) - 1}")
        save(store, state.to_json())
        assert erase_rows(store, world.objects, GATEWAY, [("orders", "9")], now) == [NAME]
        assert kept_of_row(world.objects, GATEWAY, ("orders", "9")) == 1, "it was not given yet"


@pytest.mark.law("E10")
def test_connector_that_keeps_nothing_is_not_leased_for_erasure() -> None:
    store = registered()
    assert store.lease(GATEWAY, NAME, NOW_MS, NOW_MS + 60_000)

    assert erase_rows(store, Objects(), GATEWAY, [ANN], now) == []
