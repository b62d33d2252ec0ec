"""Tables in which deletes win: what a client shows of a row that is deleted while it edits it."""

from __future__ import annotations

import json
import queue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.client import Client, LostWrite
from lakesync.core.delta import Op
from lakesync.core.merge import as_read, fold, view
from lakesync.testing.memory_gateway import MemoryGateway
from tests.support.builders import WALL_MS
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.delta import Delta

pytestmark = pytest.mark.law("K32")

SCHEMA = {
    "table": "todos",
    "columns": [{"name": "title", "type": "string"}, {"name": "done", "type": "json"}],
    "deleteWins": True,
}


class World:
    """A gateway of which one table is declared so, and clients whose clock a test moves."""

    def __init__(self, folder: Path) -> None:
        self.ms = WALL_MS
        self.gateway = MemoryGateway(folder, wall_clock=self.wall_clock)
        self.gateway.put_schema(SCHEMA)

    def wall_clock(self) -> int:
        self.ms += 1
        return self.ms

    def client(self, name: str, **options: Any) -> Client:
        return self.gateway.client(name, wall_clock=self.wall_clock, **options)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.gateway.close()


def shown(client: Client) -> dict[str, Any]:
    """Return the rows that an app sees, by both ways of reading."""
    rows = client.query("SELECT * FROM todos").unwrap()
    seen = {row["_row_id"]: client.get("todos", row["_row_id"]).unwrap() for row in rows}
    assert all(row is not None for row in seen.values())
    return seen


def sync(*clients: Client) -> None:
    for client in (*clients, *clients):
        client.sync().unwrap()


@pytest.mark.law("M10")
def test_in_a_delete_wins_table_an_update_does_not_restore_a_deleted_row(world: World) -> None:
    a, b = world.client("a"), world.client("b")
    a.insert("todos", "r1", {"title": "Milk", "done": False}).unwrap()
    sync(a, b)
    a.delete("todos", "r1").unwrap()
    b.update("todos", "r1", {"done": True}).unwrap()
    assert shown(b) == {"r1": {"title": "Milk", "done": True}}

    sync(a, b)

    assert shown(a) == shown(b) == world.gateway.rows("todos") == {}
    assert a.get("todos", "r1").unwrap() is b.get("todos", "r1").unwrap() is None


@pytest.mark.law("M10")
def test_an_insert_restores_a_deleted_row_with_the_columns_newer_than_the_delete(
    world: World,
) -> None:
    a, b = world.client("a"), world.client("b")
    a.insert("todos", "r1", {"title": "Milk", "done": False}).unwrap()
    sync(a, b)
    a.delete("todos", "r1").unwrap()
    b.update("todos", "r1", {"done": True}).unwrap()
    sync(a, b)
    a.insert("todos", "r1", {"title": "Bread"}).unwrap()
    assert shown(a) == {"r1": {"title": "Bread", "done": True}}

    sync(a, b)

    assert shown(a) == shown(b) == {"r1": {"title": "Bread", "done": True}}
    assert world.gateway.rows("todos") == shown(a)


@pytest.mark.law("K27")
def test_the_app_is_notified_of_an_edit_that_lost_to_a_delete(world: World) -> None:
    a, b = world.client("a"), world.client("b", gather_ms=0)
    lost: queue.Queue[LostWrite] = queue.Queue()
    a.insert("todos", "r1", {"title": "Milk"}).unwrap()
    sync(a, b)
    b.on_conflict(lost.put)
    a.delete("todos", "r1").unwrap()
    b.update("todos", "r1", {"title": "Bread"}).unwrap()
    sync(a, b)

    reported = lost.get(timeout=PATIENCE_S)
    assert reported == LostWrite(
        "todos", "r1", "title", "Bread", None, "a", deleted=True, base="Milk",
        own_stamp=reported.own_stamp, other_stamp=reported.other_stamp, id=reported.id,
    )  # fmt: skip
    assert lost.empty()


def test_a_clients_own_unsynced_delete_hides_its_later_updates(world: World) -> None:
    a = world.client("a")
    a.insert("todos", "r1", {"title": "Milk"}).unwrap()
    sync(a)
    a.delete("todos", "r1").unwrap()
    a.update("todos", "r1", {"title": "Bread"}).unwrap()

    assert shown(a) == {}
    assert a.get("todos", "r1").unwrap() is None


def test_a_client_that_receives_the_delete_wins_schema_re_evaluates_its_rows(world: World) -> None:
    a = world.client("a")
    a.update("todos", "r1", {"title": "nobody inserted it"}).unwrap()
    a.insert("todos", "r2", {"title": "Milk"}).unwrap()
    assert shown(a).keys() == {"r1", "r2"}, "it has not heard of the schema yet"

    changed: queue.Queue[frozenset[str]] = queue.Queue()
    a.on_change(changed.put)
    a.sync().unwrap()
    assert "todos" in changed.get(timeout=PATIENCE_S)

    assert shown(a) == world.gateway.rows("todos") == {"r2": {"title": "Milk"}}
    a.close()
    again = world.client("a")
    assert shown(again) == {"r2": {"title": "Milk"}}
    again.update("todos", "r3", {"title": "nor this"}).unwrap()
    assert shown(again).keys() == {"r2"}


def test_another_process_with_the_same_file_learns_that_deletes_win(world: World) -> None:
    a = world.client("a")
    other = world.client("a")
    assert other.query("SELECT 1 AS one").unwrap() == [{"one": 1}]
    sync(a)
    other.update("todos", "r1", {"title": "nobody inserted it"}).unwrap()

    assert shown(other) == shown(a) == {}


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, Op, str, dict[str, object]]]:
    """What two clients do to two rows, in the order in which they do it."""
    columns: list[dict[str, object]] = [
        {"title": "x"}, {"title": "y"}, {"done": 1}, {"title": "x", "done": 2}
    ]  # fmt: skip
    one = st.tuples(
        st.sampled_from(["a", "b", "sync a", "sync b"]),
        st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE]),
        st.sampled_from(["r1", "r2"]),
        st.sampled_from(columns),
    )
    return draw(st.lists(one, min_size=2, max_size=12))


@pytest.mark.law("M10")
@given(done=edits(), ruled=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_clients_and_gateway_show_the_same_rows_of_a_delete_wins_table(
    tmp_path_factory: pytest.TempPathFactory,
    done: list[tuple[str, Op, str, dict[str, object]]],
    *,
    ruled: bool,
) -> None:
    world = World(tmp_path_factory.mktemp("files"))
    if ruled:
        shows = {"column": "title", "op": "neq", "value": "y"}
        bucket = {"name": "all", "tables": ["todos"], "filters": [shows], "write": []}
        world.gateway.put_rules({"version": 1, "buckets": [bucket]})
    clients = {name: world.client(name) for name in "ab"}
    for client in clients.values():
        client.declare("todos", {"title": "string"}).unwrap()
    made: dict[str, list[Delta]] = {"r1": [], "r2": []}
    for who, op, row, columns in done:
        client = clients[who[-1]]
        if who.startswith("sync"):
            client.sync().unwrap()
        elif op is Op.INSERT:
            made[row].append(client.insert("todos", row, columns).unwrap())
        elif op is Op.UPDATE:
            made[row].append(client.update("todos", row, columns).unwrap())
        else:
            made[row].append(client.delete("todos", row).unwrap())
    sync(*clients.values())
    sync(*clients.values())
    states = {row: as_read(fold(deltas), delete_wins=True) for row, deltas in made.items()}
    rows = {row: values for row, state in states.items() if (values := view(state)) is not None}
    seen = {
        row: {name: json.loads(value) for name, value in values.items()}
        for row, values in rows.items()
    }

    assert world.gateway.rows("todos") == seen
    visible = {row: v for row, v in seen.items() if not ruled or v.get("title", "y") != "y"}
    for client in clients.values():
        kept = shown(client)
        # What rules hide of its own writes, a client is told nothing of, and keeps.
        assert {row: kept.get(row) for row in (visible if ruled else kept | visible)} == visible
    world.gateway.close()
