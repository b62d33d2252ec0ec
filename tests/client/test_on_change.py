"""Callbacks: told of tables that change, and harmless whatever they do."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

import pytest

from lakesync.client import change_feed
from tests.support.waiting import PATIENCE_S, waited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.client import Client
    from tests.client.support.world import World

pytestmark = pytest.mark.law("K22")

SOON_S = PATIENCE_S
NEVER_S = 0.3


@pytest.fixture
def changes() -> Iterator[queue.Queue[frozenset[str]]]:
    return queue.Queue()  # type: ignore[return-value]


@pytest.fixture
def client(world: World) -> Client:
    return world.client(gather_ms=0)


def test_a_change_callback_receives_the_names_of_changed_tables(
    world: World, client: Client, changes: queue.Queue[frozenset[str]]
) -> None:
    client.insert("Notes", "n1", {}).unwrap()
    with client.on_change(changes.put):
        client.insert("todos", "t1", {}).unwrap()
        assert changes.get(timeout=SOON_S) == {"todos"}
        with client.transaction() as tx:
            tx.insert("todos", "t2", {})
            tx.insert("Notes", "n2", {})
        assert changes.get(timeout=SOON_S) == {"todos", "Notes"}
        other = world.client("a", gather_ms=0)
        other.insert("todos", "t3", {}).unwrap()
        assert changes.get(timeout=SOON_S) == {"todos", "Notes"}  # it is not known which
    client.insert("todos", "t4", {}).unwrap()
    with pytest.raises(queue.Empty):
        changes.get(timeout=NEVER_S)


def test_a_change_callback_is_called_only_for_its_tables(
    client: Client, changes: queue.Queue[frozenset[str]]
) -> None:
    client.on_change(changes.put, ["notes"])
    client.insert("todos", "t1", {}).unwrap()
    client.push().unwrap()
    with pytest.raises(queue.Empty):
        changes.get(timeout=NEVER_S)
    client.insert("notes", "n1", {}).unwrap()
    assert changes.get(timeout=SOON_S) == {"notes"}


def test_a_change_callback_that_raises_is_logged_and_called_again(
    client: Client, changes: queue.Queue[frozenset[str]], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(tables: frozenset[str]) -> None:
        changes.put(tables)
        raise RuntimeError("the app's own")

    subscription = client.on_change(fails)
    client.on_change(changes.put, ["notes"])
    for number in range(2):
        client.insert("todos", f"t{number}", {}).unwrap()
        assert changes.get(timeout=SOON_S) == {"todos"}
    client.insert("notes", "n1", {}).unwrap()
    assert changes.get(timeout=SOON_S) == changes.get(timeout=SOON_S) == {"notes"}
    assert isinstance(subscription.error, RuntimeError)
    assert any("fails raised" in record.getMessage() for record in caplog.records)


def test_a_blocking_change_callback_is_logged_and_delays_nothing_else(
    client: Client,
    changes: queue.Queue[frozenset[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_feed, "CALLBACK_S", 0.1)
    begun, go_on = threading.Event(), threading.Event()
    calls: list[frozenset[str]] = []

    def blocks(tables: frozenset[str]) -> None:
        calls.append(tables)
        begun.set()
        go_on.wait(SOON_S)

    client.on_change(blocks)
    client.on_change(changes.put)
    client.insert("todos", "t1", {}).unwrap()
    assert begun.wait(SOON_S)
    assert changes.get(timeout=SOON_S) == {"todos"}
    for number in range(5):
        client.insert("notes", f"n{number}", {}).unwrap()
        assert changes.get(timeout=SOON_S) == {"notes"}
    with client.watch("SELECT count(*) AS n FROM notes") as watch:
        assert next(watch) == [{"n": 5}]
    client.sync().unwrap()
    with caplog.at_level(logging.WARNING):
        assert waited(lambda: caplog.records)
    assert ["blocks has run for" in record.getMessage() for record in caplog.records] == [True]
    assert calls == [{"todos"}]
    go_on.set()
    assert waited(lambda: len(calls) == 2)
    assert calls == [{"todos"}, {"notes"}]


def test_a_change_callback_may_edit_query_and_close_its_subscription_and_client(
    client: Client, changes: queue.Queue[frozenset[str]]
) -> None:
    def copies(tables: frozenset[str]) -> None:
        subscription.close()
        client.insert("copies", "c1", {"of": "t1"}).unwrap()
        assert client.query("SELECT count(*) AS n FROM copies").unwrap() == [{"n": 1}]
        client.close()
        changes.put(tables)

    subscription = client.on_change(copies, ["todos"])
    client.insert("todos", "t1", {}).unwrap()
    assert changes.get(timeout=SOON_S) == {"todos"}
    assert subscription.error is None
