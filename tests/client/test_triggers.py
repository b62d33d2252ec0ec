"""Triggers of the app: what they write to its own tables stays; they never write synced ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.result import Err, Ok
from tests.client.support.world import World, check_sound, reopened, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Client

pytestmark = pytest.mark.law("K29")

TRIGGERS: dict[str, str] = {
    "into another synced table": "CREATE TRIGGER own AFTER {} ON todos BEGIN "
    "INSERT OR REPLACE INTO counts (_row_id, n) VALUES ('c1', 99); END",
    "an update of another": "CREATE TRIGGER own AFTER {} ON todos BEGIN "
    "UPDATE counts SET n = 99; END",
    "a delete of another": "CREATE TRIGGER own AFTER {} ON todos BEGIN DELETE FROM counts; END",
    "into the same table": "CREATE TRIGGER own AFTER {} ON todos BEGIN "
    "UPDATE todos SET title = 'by the trigger'; END",
    "through a local table": "CREATE TRIGGER first AFTER {} ON todos BEGIN "
    "INSERT INTO mine VALUES (1); END; CREATE TRIGGER own AFTER INSERT ON mine BEGIN "
    "UPDATE counts SET n = 99; END",
    "what leaves rows out": "CREATE TRIGGER own BEFORE {} ON todos BEGIN "
    "SELECT RAISE (ignore); END",
    "into LakeSync's own": "CREATE TRIGGER own AFTER {} ON todos BEGIN "
    "DELETE FROM _lakesync_outbox; END",
}
EDITS: dict[str, dict[str, Callable[[Client], Any]]] = {
    "INSERT": {
        "insert": lambda client: client.insert("todos", "t9", {"title": "y"}),
        "insert_many": lambda client: client.insert_many("todos", {"t9": {"title": "y"}}),
        "execute": lambda client: client.execute(
            "INSERT INTO todos (_row_id, title) VALUES ('t8', 'y')"
        ),
    },
    "UPDATE": {
        "update": lambda client: client.update("todos", "t1", {"title": "y"}),
        "execute": lambda client: client.execute("UPDATE todos SET title = 'y'"),
    },
    "DELETE": {
        "delete": lambda client: client.delete("todos", "t1"),
        "execute": lambda client: client.execute("DELETE FROM todos"),
    },
}


def changed_outside(world: World, sql: str) -> None:
    """Let another program change a client's file."""
    with closing(sqlite3.connect(world.folder / "a.db")) as file:
        file.executescript(sql)


def begun(world: World) -> tuple[Client, Client]:
    """Return a client with rows of two synced tables and a local one, and another client."""
    client, other = world.client(), world.client("b")
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.insert("counts", "c1", {"n": 1}).unwrap()
    client.execute("CREATE TABLE mine (n)").unwrap()
    client.sync().unwrap()
    other.sync().unwrap()
    return client, other


@pytest.mark.parametrize("event", EDITS)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_an_edit_that_fires_a_trigger_writing_synced_tables_is_refused_and_pages_fire_none(
    world: World, trigger: str, event: str
) -> None:
    client, other = begun(world)
    changed_outside(world, TRIGGERS[trigger].format(event))
    for _ in range(2):
        for operation in EDITS[event].values():
            result = operation(client)
            assert isinstance(result, Err)
            assert result.error.code == "VALIDATION_ERROR"
            assert "a trigger of the app, own," in str(result.error)
        client = reopened(world, client)
    assert client.pending() == Ok([])

    other.insert("todos", "t2", {"title": "new"}).unwrap()
    other.update("todos", "t1", {"title": "changed"}).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()
    other.delete("todos", "t1").unwrap()
    other.sync().unwrap()
    client.sync().unwrap()

    assert rows_of(client) == world.rows()
    assert client.get("counts", "c1").unwrap() == {"n": 1}
    check_sound(client)
    names = client.query("SELECT name FROM sqlite_master WHERE type = 'trigger'", as_=tuple)
    assert ("own",) in names.unwrap()
    changed_outside(world, "DROP TRIGGER own")
    for operation in EDITS[event].values():
        operation(client).unwrap()
    client.sync().unwrap()
    assert rows_of(client) == world.rows()
    check_sound(client)


def test_discarding_an_edit_does_not_fire_a_trigger_that_writes_synced_tables(world: World) -> None:
    client, _ = begun(world)
    kept = client.update("todos", "t1", {"title": "waits"}).unwrap()
    changed_outside(world, TRIGGERS["an update of another"].format("UPDATE"))

    client.discard(kept.delta_id).unwrap()
    client.sync().unwrap()

    assert client.get("todos", "t1").unwrap() == {"title": "x"}
    assert rows_of(client) == world.rows()
    check_sound(client)


def test_edits_are_refused_once_a_trigger_would_write_a_table_that_became_synced(
    world: World,
) -> None:
    client, other = world.client(), world.client("b")
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    changed_outside(
        world,
        "CREATE TABLE late (_row_id); CREATE TRIGGER own AFTER INSERT ON todos BEGIN "
        "INSERT INTO late VALUES (NEW._row_id); END",
    )
    client.insert("todos", "t2", {"title": "y"}).unwrap()
    changed_outside(world, "DROP TABLE late")
    other.insert("late", "l1", {"n": 1}).unwrap()
    other.insert("todos", "t3", {"title": "z"}).unwrap()
    other.sync().unwrap()

    client.sync().unwrap()

    assert rows_of(client) == world.rows()
    assert isinstance(client.insert("todos", "t4", {"title": "y"}), Err)
    check_sound(client)


def test_a_trigger_that_writes_local_tables_or_refuses_rows_fires_for_edits_and_pages(
    world: World,
) -> None:
    client, other = begun(world)
    changed_outside(
        world,
        "CREATE TABLE log (what); CREATE TRIGGER own AFTER INSERT ON todos BEGIN "
        "INSERT INTO log VALUES (NEW.title); END; CREATE TRIGGER checks BEFORE INSERT ON todos "
        "WHEN NEW.title = 'bad' BEGIN SELECT RAISE(ABORT, 'bad'); END",
    )
    client.insert("todos", "t2", {"title": "a"}).unwrap()
    client.execute("INSERT INTO todos (_row_id, title) VALUES ('t3', 'b')").unwrap()
    assert isinstance(client.insert("todos", "t4", {"title": "bad"}), Err)
    other.insert("todos", "t5", {"title": "c"}).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()
    logged = client.query("SELECT what FROM log ORDER BY rowid", as_=tuple).unwrap()
    assert logged == [("a",), ("b",), ("c",)]
    check_sound(client)
