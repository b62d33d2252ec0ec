"""Destinations keep nothing of erased rows: neither values, nor history, nor dead letters."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.adapters.database import Position
from lakesync.errors import Contention
from lakesync.maintenance.erasure import ask_destinations, set_aside, undelivered
from tests.delivery.world import World
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.database import RowImages

SECRET = "the value that has to go"


def world_with(*names: str) -> World:
    """Return a gateway whose destinations have a row that was deleted, and another."""
    world = World()
    for name in names:
        world.declare(name)
    world.deliver()
    world.push(insert("ann", at=at_ms(1), title=SECRET), insert("bob", at=at_ms(2), title="b"))
    world.flush()
    world.deliver()
    world.push(update("ann", at=at_ms(3), title=SECRET + "!"), delete("ann", at=at_ms(9)))
    world.flush()
    world.deliver()
    return world


def ask(world: World, *rows: str, life: Life | None = None, table: str = "todos") -> list[str]:
    of = life.of if life else lambda port: port
    declared = world.buffer.destinations(GATEWAY)
    stores = of(world.objects), of(world.deliveries)
    return ask_destinations(declared, *stores, GATEWAY, table, rows)


def history(world: World, name: str, table: str = "todos") -> str:
    """Return all deltas that a destination keeps, and what is left of its rows, as text."""
    database = world.databases[name]
    since = Position(database._peek(table).forgotten, 1 << 62)
    deltas = database.query_deltas_since(table, since, 1_000).unwrap().deltas
    return repr(deltas) + repr(database.rows_after(table, "", 1_000).unwrap().rows)


@pytest.mark.law("E9")
def test_erased_row_leaves_no_destination_history_or_values() -> None:
    world = world_with("first", "second")
    assert all(SECRET in history(world, name) for name in ("first", "second"))

    assert ask(world, "ann", "nobody") == ["first", "second"]
    assert undelivered(world.objects, GATEWAY, "todos") == ["first", "second"]
    assert world.deliver() == []

    assert undelivered(world.objects, GATEWAY, "todos") == []
    for name in ("first", "second"):
        assert "ann" not in history(world, name)
        assert world.rows(name=name) == {"bob": {"title": "b"}}
    world.push(insert("cid", at=at_ms(20), title="c"), insert("ann", at=at_ms(21), title="new"))
    world.flush()
    assert world.deliver() == []
    for name in ("first", "second"):
        world.check(name=name)


@pytest.mark.law("E9")
def test_erasure_keeps_the_new_state_of_a_row_inserted_again() -> None:
    world = world_with("first")
    world.push(insert("ann", at=at_ms(20), title="new"))
    world.flush()
    ask(world, "ann")
    assert world.deliver() == []

    assert SECRET not in history(world, "first")
    world.check(name="first")
    assert world.rows(name="first")["ann"] == {"title": "new"}


@pytest.mark.law("E9")
def test_erasure_removes_event_rows() -> None:
    world = World()
    columns = [{"name": "title", "type": "string"}]
    world.admin.register_schema(GATEWAY, {"table": "events", "columns": columns, "append": True})
    world.declare("first")
    world.deliver()
    world.push(
        insert("e1", at=at_ms(1), table="events", title=SECRET),
        insert("e2", at=at_ms(2), table="events", title="other"),
    )
    world.flush()
    world.deliver()
    assert SECRET in history(world, "first", "events")

    ask(world, "e1", table="events")
    assert world.deliver() == []

    assert SECRET not in history(world, "first", "events")
    assert world.rows("events", "first") == {"e2": {"title": "other"}}


@pytest.mark.law("E9")
def test_unreachable_or_paused_destination_erases_later_and_is_listed_until_then() -> None:
    world = world_with("first", "second")
    world.databases["first"].is_away = True
    world.destinations().set_paused(GATEWAY, "second", paused=True)
    ask(world, "ann")
    assert len(world.deliver()) == 1
    assert undelivered(world.objects, GATEWAY, "todos") == ["first", "second"]

    world.databases["first"].is_away = False
    world.destinations().set_paused(GATEWAY, "second", paused=False)
    world.sweep()

    assert undelivered(world.objects, GATEWAY, "todos") == []
    assert not any(SECRET in history(world, name) for name in ("first", "second"))


@pytest.mark.law("E9")
@pytest.mark.parametrize("last_happens", [False, True])
def test_erasure_killed_anywhere_is_completed_by_the_next_one(*, last_happens: bool) -> None:
    for writes in range(20):
        world = world_with("first")
        life = Life(writes, last_happens=last_happens)
        try:
            ask(world, "ann", life=life)
            world.deliver(life)
        except Killed:
            ask(world, "ann")
            world.sweep()
        else:
            assert writes > 3
        assert undelivered(world.objects, GATEWAY, "todos") == []
        assert "ann" not in history(world, "first")
        assert world.rows(name="first") == {"bob": {"title": "b"}}
        if writes > 8:
            return


@pytest.mark.law("E9")
def test_erasure_is_repeated_after_a_write_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_with("first")
    database = world.databases["first"]
    real = database.put_rows
    ask(world, "ann")
    with monkeypatch.context() as patch:
        patch.setattr(database, "put_rows", lambda images: real(_behind(images)))
        assert [type(error) for error in world.deliver()] == [Contention]
    assert undelivered(world.objects, GATEWAY, "todos") == ["first"]

    with suppress(Contention):
        world.sweep()
    assert "ann" not in history(world, "first")


def _behind(images: RowImages) -> RowImages:
    return replace(images, after=0, last=1)


@pytest.mark.law("E9")
def test_failed_claims_of_the_table_are_listed_as_set_aside() -> None:
    world = World()
    keys: Sequence[str] = (
        f"claims-failed/{GATEWAY}/todos/1-2.json",
        f"deliveries-failed/{GATEWAY}/first/todos/1-2.json",
    )
    others = (
        f"claims-failed/{GATEWAY}/todos2/1-2.json",
        f"deliveries-failed/{GATEWAY}/todos/notes/1-2.json",
        "claims-failed/other/todos/1-2.json",
    )
    for key in (*keys, *others):
        world.objects.put_object(key, b"{}", "application/json")

    assert set_aside(world.objects, GATEWAY, "todos") == list(keys)


@pytest.mark.law("E9")
def test_delivery_file_of_a_later_release_is_left_waiting() -> None:
    world = world_with("first")
    key = f"deliveries/{GATEWAY}/first/todos/something.new.json"
    world.objects.put_object(key, b"{}", "application/json")

    world.sweep()

    assert world.waiting("first") == [key]
