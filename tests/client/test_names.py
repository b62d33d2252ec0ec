"""Names that differ in case alone are one: another spelling is refused, the gateway's stands."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.errors import NameTaken
from lakesync.result import Err, Ok
from tests.client.support.world import World, check_sound, reopened, rows_of, user_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.client import Client


@pytest.fixture
def real(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, "real")
    yield world
    world.close()


EDITS: dict[str, Callable[[Client], Any]] = {
    "the table Todos": lambda client: client.insert("Todos", "t2", {"title": "x"}),
    "the table TODOS": lambda client: client.delete("TODOS", "t1"),
    "the table tOdos": lambda client: client.declare("tOdos", {"title": "string"}),
    "the column Title": lambda client: client.update("todos", "t1", {"done": True, "Title": "x"}),
    "the column TITLE": lambda client: client.declare("todos", {"TITLE": "string"}),
    "the column Done": lambda client: client.declare("new", {"done": "json", "Done": "json"}),
}


@pytest.mark.law("K9")
@pytest.mark.parametrize("name", EDITS)
def test_another_spelling_is_refused_at_once_with_the_first(real: World, name: str) -> None:
    client = real.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    result = EDITS[name](client)

    assert isinstance(result, Err)
    assert isinstance(result.error, NameTaken)
    assert f"{name} is there already, spelled {name.split()[2].lower()}" in result.error.message
    assert user_tables(client) == ["todos"]
    assert client.query("SELECT * FROM todos").unwrap() == [{"_row_id": "t1", "title": "x"}]
    assert len(client.pending().unwrap()) == 1
    check_sound(client)


@pytest.mark.law("K9")
@pytest.mark.parametrize("begins_with", ["sync", "pull"])
def test_a_table_named_offline_takes_the_gateways_spelling_with_its_edits(
    real: World, begins_with: str
) -> None:
    first, second = real.client("first"), real.client("second")
    first.insert("Todos", "t1", {"Title": "of the first"}).unwrap()
    first.sync().unwrap()
    second.insert("todos", "t2", {"title": "of the second", "done": True}).unwrap()
    second.update("todos", "t1", {"title": "newer"}).unwrap()

    if begins_with == "pull":
        second.pull().unwrap()
        assert [edit.delta.table for edit in second.pending().unwrap()] == ["Todos", "Todos"]
        check_sound(second)
        second = reopened(real, second)
    second.sync().unwrap()
    first.sync().unwrap()

    assert second.quarantined() == Ok([])
    assert second.pending() == Ok([])
    assert rows_of(first) == rows_of(second) == real.rows()
    assert set(rows_of(second)) == {("Todos", "t1"), ("Todos", "t2")}
    sql = "SELECT * FROM todos ORDER BY _row_id"
    rows = first.query(sql).unwrap()
    assert rows == second.query(sql).unwrap()
    assert rows[1] == {"_row_id": "t2", "Title": "of the second", "done": True}
    check_sound(first)
    check_sound(second)


@pytest.mark.law("K9")
def test_a_column_takes_the_gateways_spelling_beside_a_broken_view(real: World) -> None:
    """SQLite renames no column then; the same SQL reads it all the same."""
    first, second = real.client("first"), real.client("second")
    first.insert("todos", "t1", {"title": "x", "Done": 0}).unwrap()
    first.sync().unwrap()
    second.insert("todos", "t2", {"done": 1}).unwrap()
    with sqlite3.connect(real.folder / "second.db") as own:
        own.execute("CREATE VIEW broken AS SELECT x FROM nowhere")
    own.close()

    second.sync().unwrap()

    assert second.get("todos", "t2").unwrap() == {"Done": 1}
    assert second.query("SELECT Done FROM todos ORDER BY _row_id").unwrap()[1] in (
        {"Done": 1},
        {"done": 1},
    )
    assert rows_of(second) == real.rows()
    check_sound(second)


@pytest.mark.law("K9")
def test_an_app_that_follows_a_refusal_sends_what_was_refused_too(real: World) -> None:
    """Where rules hide the table's rows no page tells its spelling: the refusal does."""
    first, second = real.client("first"), real.client("second")
    first.insert("Todos", "t1", {"title": "x"}).unwrap()
    first.sync().unwrap()
    second.insert("todos", "t2", {"title": "y"}).unwrap()
    second.push().unwrap()
    (refused,) = second.quarantined().unwrap()
    assert refused.code == "NAME_TAKEN"

    second.insert("Todos", "t3", {"title": "z"}).unwrap()
    second.push().unwrap()

    assert second.quarantined() == Ok([])
    assert set(real.rows()) == {("Todos", "t1"), ("Todos", "t2"), ("Todos", "t3")}
    check_sound(second)


@pytest.mark.law("K9")
def test_a_row_is_read_by_any_spelling_of_its_table(real: World) -> None:
    client = real.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    assert client.get("Todos", "t1").unwrap() == {"title": "x"}
    assert client.sql_name("TODOS", "Title").unwrap() == "title"
