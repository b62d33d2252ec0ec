"""Names that differ in case alone are one: another spelling is refused, the gateway's stands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client.storage.app_table import _FUNCTIONS
from lakesync.errors import NameTaken
from lakesync.result import Err, Ok
from lakesync.testing.memory_gateway import MemoryGateway
from tests.client.support.world import World, check_sound, reopened, rows_of, user_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.client import Client

pytestmark = pytest.mark.law("K9")


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


@pytest.mark.parametrize("name", EDITS)
def test_a_name_that_differs_only_in_case_is_refused_with_the_existing_spelling(
    real: World, name: str
) -> None:
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


@pytest.mark.parametrize("begins_with", ["sync", "pull"])
def test_a_table_named_offline_and_its_edits_adopt_the_gateways_spelling(
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


def test_a_column_adopts_the_gateways_spelling_despite_a_broken_view(real: World) -> None:
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


def test_using_the_spelling_named_in_a_refusal_also_pushes_the_refused_edit(real: World) -> None:
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


def test_a_row_can_be_read_by_any_spelling_of_its_table(real: World) -> None:
    client = real.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()

    assert client.get("Todos", "t1").unwrap() == {"title": "x"}
    assert client.sql_name("TODOS", "Title").unwrap() == "title"


def _functions() -> list[str]:
    """Return the names of all tables that this build of SQLite has without anybody making them."""
    with closing(sqlite3.connect(":memory:")) as connection:
        modules = {name for (name,) in connection.execute("PRAGMA module_list")}
        pragmas = {f"pragma_{name}" for (name,) in connection.execute("PRAGMA pragma_list")}
    return sorted(modules | pragmas | _FUNCTIONS)


def test_a_pushed_table_never_shadows_a_table_valued_function_of_sqlite(
    world: World,
) -> None:
    names = [name for name in _functions() if not name.startswith("sqlite_")]
    with closing(sqlite3.connect(":memory:")) as connection:
        callable_here = [name for name in names if _answers(connection.execute, name)]
    assert {"json_each", "json_tree", "pragma_table_info"} <= set(callable_here)
    first, second = world.client("first"), world.client("second")
    second.insert("todos", "t1", {"title": "x", "tags": ["a", "b"]}).unwrap()
    for name in names:
        first.insert(name.upper(), "r", {"name": name}).unwrap()
    first.sync().unwrap()

    second.sync().unwrap()
    second = reopened(world, second)

    second.declare("todos", {"title": "string", "n": "decimal(9,2)"}, indexes=[["n"]]).unwrap()
    assert second.get("todos", "t1").unwrap() == {"title": "x", "tags": ["a", "b"]}
    sql = "SELECT value FROM todos, json_each(tags) ORDER BY value"
    assert second.query(sql, as_=tuple).unwrap() == [("a",), ("b",)]
    assert second.query("SELECT name FROM pragma_table_info('todos')").unwrap()
    for name in callable_here:
        assert _answers(lambda sql: second.query(sql).unwrap(), name), name
    for name in names:
        assert second.get(name.upper(), "r").unwrap() == {"name": name}
        sql_name = second.sql_name(name).unwrap()
        assert sql_name
        assert second.query(f'SELECT name FROM "{sql_name}"').unwrap() == [{"name": name}]  # noqa: S608 - our own name
    check_sound(second)


def _answers(execute: Callable[[str], object], function: str) -> bool:
    """Return whether a table is called as a function, whatever it thinks of its arguments."""
    try:
        execute(f'SELECT * FROM "{function}"(1, 1)')  # noqa: S608 - SQLite's own names
    except Exception as exc:  # noqa: BLE001 - either module's, or ours
        return "is not a function" not in str(exc) and "no such table" not in str(exc)
    return True


OWN: dict[str, str] = {
    "a table notes": "CREATE TABLE notes (text)",
    "a table Notes": "CREATE TABLE Notes (text)",
    "a view notes": "CREATE VIEW notes AS SELECT 1 AS text",
    "an index notes": "CREATE INDEX notes ON other (text)",
    "a virtual table notes": "CREATE VIRTUAL TABLE notes USING fts5 (text)",
}
NOTES: dict[str, Callable[[Client], Any]] = {
    "insert": lambda client: client.insert("notes", "n1", {"text": "x"}),
    "insert_many": lambda client: client.insert_many("notes", {"n1": {"text": "x"}}),
    "update": lambda client: client.update("notes", "n1", {"text": "x"}),
    "delete": lambda client: client.delete("NOTES", "n1"),
    "declare": lambda client: client.declare("notes", {"text": "string"}),
}


@pytest.mark.parametrize("is_pulled", [False, True])
@pytest.mark.parametrize("own", OWN)
def test_edits_of_a_table_are_refused_while_an_object_of_the_app_has_its_name(
    world: World, own: str, *, is_pulled: bool
) -> None:
    """Every query of the name means the app's object, so an edit would be nowhere to be seen."""
    client, other = world.client(), world.client("b")
    client.execute("CREATE TABLE other (text)").unwrap()
    with closing(sqlite3.connect(world.folder / "a.db")) as file, file:
        file.execute(OWN[own])
    if is_pulled:
        other.insert("notes", "n1", {"text": "theirs"}).unwrap()
        other.sync().unwrap()
        client.sync().unwrap()
        assert client.get("notes", "n1").unwrap() == {"text": "theirs"}

    for operation in (*NOTES, *NOTES):
        result = NOTES[operation](client)
        assert isinstance(result, Err), operation
        assert result.error.code == "NAME_TAKEN"
        assert own.rsplit(maxsplit=1)[-1].lower() in str(result.error).lower()

    assert client.pending() == Ok([])
    assert (client.sql_name("notes").unwrap() is None) is not is_pulled
    client = reopened(world, client)
    assert isinstance(NOTES["insert"](client), Err)
    with closing(sqlite3.connect(world.folder / "a.db")) as file, file:
        file.execute(f"DROP {own.split()[-2]} notes")
    client.insert("notes", "n2", {"text": "mine"}).unwrap()
    client.sync().unwrap()
    assert rows_of(client) == world.rows()
    check_sound(client)


@pytest.mark.parametrize("sql", ["CREATE TABLE drafts (text)", "ALTER TABLE mine RENAME TO drafts"])
def test_an_app_cannot_create_a_table_that_hides_a_synced_one(world: World, sql: str) -> None:
    client, other = world.client(), world.client("b")
    client.execute("CREATE TABLE drafts (text)").unwrap()
    client.execute("CREATE TABLE mine (text)").unwrap()
    other.insert("drafts", "d1", {"text": "theirs"}).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()
    client.execute("DROP TABLE drafts").unwrap()
    client.update("drafts", "d1", {"text": "mine"}).unwrap()

    result = client.execute(sql)

    assert isinstance(result, Err)
    assert result.error.code == "NAME_TAKEN"
    client.update("drafts", "d1", {"text": "mine again"}).unwrap()
    assert client.query("SELECT * FROM mine").unwrap() == []
    check_sound(client)


def test_an_app_cannot_create_temporary_tables_or_tables_with_reserved_names(world: World) -> None:
    client = world.client()
    client.execute("CREATE TABLE mine (text)").unwrap()
    for sql in (
        "CREATE TABLE _lakesync_mine (text)",
        "ALTER TABLE mine RENAME TO _LakeSync_mine",
        "CREATE TEMP TABLE todos (text)",
    ):
        result = client.execute(sql)
        assert isinstance(result, Err), sql
        assert result.error.code == "VALIDATION_ERROR"
    assert client.query("SELECT * FROM mine").unwrap() == []


def test_a_local_table_named_like_an_sqlite_function_does_not_break_the_client(
    world: World,
) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    for name in ("json_each", "pragma_table_info", "pragma_module_list"):
        client.execute(f"CREATE TABLE {name} (x)").unwrap()
    client = reopened(world, client)
    client.declare("todos", {"title": "string", "n": "integer"}).unwrap()
    client.insert("others", "o1", {"title": "y"}).unwrap()
    assert client.get("todos", "t1").unwrap() == {"title": "x"}
    check_sound(client)


@pytest.mark.parametrize("name", ["sqlite_master", "SQLite_things"])
def test_a_table_name_with_sqlites_reserved_prefix_is_refused(real: World, name: str) -> None:
    client = real.client()
    for result in (
        client.insert(name, "r", {"x": 1}),
        client.declare(name, {"x": "integer"}),
        client.delete(name, "r"),
    ):
        assert isinstance(result, Err)
        assert result.error.code == "VALIDATION_ERROR"
        assert "sqlite_" in result.error.message
    assert client.get(name, "r") == Ok(None)
    assert client.pending() == Ok([])


@pytest.mark.law("S7")
@pytest.mark.parametrize("by", ["schema", "rules"])
def test_an_edit_of_an_undeclared_table_is_pushed_again_once_the_table_is_declared(
    tmp_path: Path, by: str
) -> None:
    with MemoryGateway(tmp_path) as gateway, gateway.client("phone") as phone:
        mine = {"column": "owner", "op": "eq", "value": "jwt:sub"}
        gateway.put_rules({"buckets": [{"name": "mine", "tables": ["todos"], "filters": [mine]}]})
        phone.insert("todos", "t1", {"owner": "phone"}).unwrap()
        phone.insert("notes", "n1", {"owner": "phone"}).unwrap()
        phone.sync()
        phone.sync()

        assert [entry.code for entry in phone.quarantined().unwrap()] == ["TABLE_NOT_DECLARED"]
        assert phone.status.pending == 0  # nothing else waits for it
        assert set(gateway.rows("todos")) == {"t1"}
        if by == "schema":
            columns = [{"name": "owner", "type": "string"}]
            gateway.put_schema({"table": "notes", "columns": columns})
        tables = ["todos", "notes"]
        gateway.put_rules({"buckets": [{"name": "mine", "tables": tables, "filters": [mine]}]})
        phone.sync()
        phone.sync()

        assert phone.quarantined().unwrap() == []
        assert set(gateway.rows("notes")) == {"n1"}
        assert phone.get("notes", "n1").unwrap() == {"owner": "phone"}


@pytest.mark.law("S2")
def test_an_edit_refused_by_a_strict_gateway_is_pushed_again_once_its_table_has_a_schema(
    tmp_path: Path,
) -> None:
    with MemoryGateway(tmp_path) as gateway, gateway.client("phone") as phone:
        columns = [{"name": "title", "type": "string"}]
        gateway.put_schema({"table": "todos", "columns": columns})
        gateway._admin.set_strict(gateway.name, strict=True)
        phone.insert("notes", "n1", {"title": "mine"}).unwrap()
        phone.sync()
        phone.sync()
        assert [entry.code for entry in phone.quarantined().unwrap()] == ["TABLE_NOT_DECLARED"]

        gateway.put_schema({"table": "notes", "columns": columns})
        phone.sync()
        phone.sync()

        assert phone.quarantined().unwrap() == []
        assert set(gateway.rows("notes")) == {"n1"}


@pytest.mark.law("S7")
def test_an_edit_of_a_table_that_rules_spell_differently_is_pushed_with_the_rules_spelling(
    tmp_path: Path,
) -> None:
    with (
        MemoryGateway(tmp_path) as gateway,
        gateway.client("phone") as phone,
        gateway.client("tablet") as tablet,
    ):
        gateway.put_rules({"buckets": [{"name": "all", "tables": ["notes"], "filters": []}]})
        phone.insert("Notes", "n1", {"text": "mine"}).unwrap()
        phone.sync()
        assert [entry.code for entry in phone.quarantined().unwrap()] == ["TABLE_NOT_DECLARED"]

        tablet.insert("notes", "n2", {"text": "theirs"}).unwrap()
        tablet.sync()
        phone.sync()
        phone.sync()

        assert phone.quarantined().unwrap() == []
        assert set(gateway.rows("notes")) == {"n1", "n2"}
