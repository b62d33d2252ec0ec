"""Edits, rows and queries on one client, with no network."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client.storage.app_catalogue import APP_COLUMNS_MAX
from lakesync.client.storage.app_table import AppTable, table_sql
from lakesync.core.delta import Op
from lakesync.errors import ValidationFailed
from lakesync.result import Err, Ok
from tests.client.support.world import check_sound, rows_of, user_tables

if TYPE_CHECKING:
    from lakesync.client import Client
    from tests.client.support.world import World


@pytest.mark.law("K1")
def test_an_edit_writes_a_row_a_row_state_and_an_outbox_entry(client: Client) -> None:
    delta = client.insert("todos", "t1", {"title": "Buy milk", "done": False}).unwrap()

    assert client.query("SELECT * FROM todos").unwrap() == [
        {"_row_id": "t1", "title": "Buy milk", "done": False}
    ]
    assert delta.values == {"title": "Buy milk", "done": False}
    assert client.get("todos", "t1").unwrap() == {"title": "Buy milk", "done": False}
    assert [entry.delta for entry in client.pending().unwrap()] == [delta]
    assert delta.op is Op.INSERT
    check_sound(client)


def test_a_delete_removes_the_row_from_the_table_and_keeps_its_tombstone(client: Client) -> None:
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    delta = client.delete("todos", "t1").unwrap()

    assert client.query("SELECT * FROM todos").unwrap() == []
    assert client.get("todos", "t1") == Ok(None)
    assert len(client.pending().unwrap()) == 2
    assert delta.columns == ()
    check_sound(client)


def test_an_update_of_an_unknown_row_writes_its_columns(client: Client) -> None:
    client.update("todos", "t9", {"done": True}).unwrap()

    assert client.query("SELECT * FROM todos").unwrap() == [{"_row_id": "t9", "done": 1}]


def test_a_delete_of_an_unknown_row_is_recorded(client: Client) -> None:
    client.delete("todos", "t9").unwrap()

    assert [entry.delta.op for entry in client.pending().unwrap()] == [Op.DELETE]
    assert client.query("SELECT * FROM todos").unwrap() == []


def test_an_update_after_a_delete_restores_only_the_columns_it_writes(client: Client) -> None:
    client.insert("todos", "t1", {"title": "x", "done": True}).unwrap()
    client.delete("todos", "t1").unwrap()
    client.update("todos", "t1", {"title": "y"}).unwrap()

    assert client.get("todos", "t1").unwrap() == {"title": "y"}
    assert client.query("SELECT * FROM todos").unwrap() == [
        {"_row_id": "t1", "title": "y", "done": None}
    ]
    check_sound(client)


VALUES: list[tuple[object, object]] = [
    ("text", "text"),
    ('quo"te\\ and \n', 'quo"te\\ and \n'),
    ("nul \0 inside", "nul \0 inside"),
    ("\U0001f600é", "\U0001f600é"),
    (7, 7),
    (-7.5, -7.5),
    (1.0, 1),
    (10**20, 1e20),
    (1e300, 1e300),
    (True, True),
    (False, False),
    (None, None),
    ([1, "two", None], [1, "two", None]),
    ({"b": 1, "a": {}}, {"b": 1, "a": {}}),
]


@pytest.mark.parametrize(("value", "stored"), VALUES)
def test_values_are_read_as_they_were_written(
    client: Client, value: object, stored: object
) -> None:
    client.insert("t", "r", {"c": value}).unwrap()

    (row,) = client.query("SELECT c FROM t").unwrap()
    assert row["c"] == stored
    assert type(row["c"]) is type(stored)
    assert client.get("t", "r").unwrap() == {"c": value}


BAD_EDITS: list[tuple[str, Any, Any, Any]] = [
    ("insert", "no-name", "r", {"c": 1}),
    ("insert", "t" * 65, "r", {"c": 1}),
    ("insert", 7, "r", {"c": 1}),
    ("insert", "t", "", {"c": 1}),
    ("insert", "t", "r" * 513, {"c": 1}),
    ("insert", "t", 7, {"c": 1}),
    ("insert", "t", "\ud800", {"c": 1}),
    ("insert", "t", "r", {"no name": 1}),
    ("insert", "t", "r", {7: 1}),
    ("insert", "t", "r", {"c": float("nan")}),
    ("insert", "t", "r", {"c": object()}),
    ("insert", "t", "r", {"c": "\ud800"}),
    ("update", "t", "r", {}),
    ("insert", "t", "r", ["c"]),
]


@pytest.mark.law("K1")
@pytest.mark.parametrize(("method", "table", "row_id", "columns"), BAD_EDITS)
def test_an_edit_that_is_not_valid_is_an_err_and_writes_nothing(
    client: Client, method: str, table: Any, row_id: Any, columns: Any
) -> None:
    result = getattr(client, method)(table, row_id, columns)

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"
    assert client.pending() == Ok([])
    assert user_tables(client) == []
    client.insert("t", "r", {"c": 1}).unwrap()


def test_an_edit_that_is_too_large_is_an_err(client: Client) -> None:
    result = client.insert("t", "r", {"c": "x" * 300_000})

    assert isinstance(result, Err)
    assert result.error.code == "DELTA_TOO_LARGE"


def test_a_transaction_is_one_group_in_the_outbox(client: Client) -> None:
    with client.transaction() as edits:
        edits.insert("todos", "t1", {"title": "x"}).unwrap()
        edits.update("todos", "t1", {"title": "y"}).unwrap()
        assert edits.query("SELECT title FROM todos").unwrap() == [{"title": "y"}]
        assert edits.get("todos", "t1").unwrap() == {"title": "y"}

    groups = client.query("SELECT DISTINCT txn FROM _lakesync_outbox").unwrap()
    assert len(groups) == 1
    assert groups[0]["txn"] is not None
    check_sound(client)


@pytest.mark.law("K1")
def test_a_transaction_that_raises_writes_nothing(client: Client) -> None:
    client.insert("todos", "t0", {"title": "before"}).unwrap()
    with suppress(ZeroDivisionError), client.transaction() as edits:
        edits.insert("other", "t1", {"new_column": "x"}).unwrap()
        raise ZeroDivisionError

    assert user_tables(client) == ["todos"]
    assert len(client.pending().unwrap()) == 1
    client.insert("other", "t1", {"new_column": "y"}).unwrap()
    check_sound(client)


@pytest.mark.law("K1")
def test_a_transaction_with_an_ignored_err_is_rolled_back_and_raises_it(client: Client) -> None:
    def edit() -> None:
        with client.transaction() as edits:
            edits.insert("todos", "t1", {"title": "x"}).unwrap()
            assert isinstance(edits.insert("todos", "", {"title": "x"}), Err)
            assert isinstance(edits.insert("todos", "t2", {"title": "x"}), Err)

    with pytest.raises(ValueError, match="1 to 512 bytes") as raised:
        _as_value_error(edit)

    assert raised.value.__cause__ is not None
    assert rows_of(client) == {}
    client.insert("todos", "t1", {"title": "x"}).unwrap()


def _as_value_error(edit: Any) -> None:
    try:
        edit()
    except Exception as exc:
        raise ValueError(str(exc)) from exc


def test_an_empty_transaction_writes_no_edit(client: Client) -> None:
    with client.transaction():
        pass

    assert client.pending() == Ok([])


HOSTILE_COLUMNS = {
    name: name
    for name in (
        *("title", "rowid", "oid", "_rowid_", "select"),
        *("order", "group", "table", "index", "null", "sqlite_x", "_lakesync_state", "id"),
    )
}


@pytest.mark.law("K9")
def test_column_names_that_clash_in_sqlite_get_distinct_sql_names(world: World) -> None:
    client = world.client()
    client.insert("t", "r", HOSTILE_COLUMNS).unwrap()

    assert client.get("t", "r").unwrap() == HOSTILE_COLUMNS
    (row,) = client.query("SELECT * FROM t").unwrap()
    assert len(row) == 1 + len(HOSTILE_COLUMNS)
    for name in HOSTILE_COLUMNS:
        assert row[client.sql_name("t", name).unwrap() or ""] == name
    check_sound(client)


@pytest.mark.law("K9")
def test_table_names_taken_or_reserved_in_sqlite_get_distinct_sql_names(world: World) -> None:
    client = world.client()
    names = ["Todos", "_lakesync_outbox", "select", "t", "pragma_table_info", "json_each"]
    other = world.client("b")
    for name in names:
        other.insert(name, name, {"name": name}).unwrap()
    other.sync().unwrap()
    with sqlite3.connect(world.folder / "a.db") as own:
        own.execute("CREATE TABLE select_ (x)")
        own.execute("CREATE VIEW t AS SELECT 1")
    own.close()
    client.sync().unwrap()

    for name in names:
        sql_name = client.sql_name(name).unwrap()
        rows = client.query(f'SELECT * FROM "{sql_name}"').unwrap()  # noqa: S608 - our own name
        assert rows == [{"_row_id": name, "name": name}]
    assert client.sql_name("Todos") == Ok("Todos")
    assert client.sql_name("unknown") == Ok(None)
    check_sound(client)


@pytest.mark.law("K9")
def test_a_column_beyond_sqlites_limit_is_stored_and_read_by_get(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.client.storage.app_catalogue.APP_COLUMNS_MAX", 40)
    columns = {f"c{place}": place for place in range(60)}
    names = list(columns)
    for start in range(0, 60, 25):
        part = {name: columns[name] for name in names[start : start + 25]}
        client.update("wide", "r", part).unwrap()

    assert client.get("wide", "r").unwrap() == columns
    (row,) = client.query("SELECT * FROM wide").unwrap()
    assert len(row) == 1 + 40
    assert client.sql_name("wide", names[-1]) == Ok(None)


@pytest.mark.law("K9")
def test_sqlite_accepts_as_many_columns_as_the_catalogue_allows() -> None:
    columns = [(f"c{place}", "") for place in range(APP_COLUMNS_MAX)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(table_sql("wide", columns))
        table = AppTable(1, "wide", "wide", {name: name for name, _ in columns})
        table.prepare()
        for value in (1, 2):
            raw = str(value).encode()
            connection.execute(table.upsert, table.cells("r", {name: raw for name, _ in columns}))
        assert connection.execute("SELECT c0 FROM wide").fetchall() == [(2,)]


def test_an_invalid_query_is_an_err(client: Client) -> None:
    for sql, parameters in (("SELEC 1", ()), ("SELECT * FROM nowhere", ()), ("SELECT ?", ())):
        result = client.query(sql, parameters)
        assert isinstance(result, Err)
        assert result.error.code == "VALIDATION_ERROR"


def test_query_parameters_may_be_named(client: Client) -> None:
    assert client.query("SELECT :x AS y", {"x": 7}).unwrap() == [{"y": 7}]


def test_declared_columns_have_types_and_indexes(client: Client) -> None:
    types = {"title": "string", "n": "integer", "price": "decimal(10,2)", "done": "boolean"}
    client.declare("todos", types, indexes=[["title"], ["done", "n"]]).unwrap()
    client.declare("todos", types, indexes=[["title"]]).unwrap()
    client.insert("todos", "t1", {"title": "x", "n": "9007199254740993", "price": "1.10"}).unwrap()

    columns = client.query("SELECT name, type FROM pragma_table_info('todos')").unwrap()
    assert {row["name"]: row["type"] for row in columns} == {
        "_row_id": "TEXT",
        "title": "",  # so that SQLite converts nothing
        "n": "",
        "price": "DECIMAL_TEXT",
        "done": "",
    }
    plan = client.query("EXPLAIN QUERY PLAN SELECT * FROM todos WHERE title = 'x'").unwrap()
    assert "_lakesync_index_" in plan[0]["detail"]
    assert client.query("SELECT n, price FROM todos").unwrap() == [
        {"n": 9007199254740993, "price": Decimal("1.10")}
    ]
    assert client.get("todos", "t1").unwrap()["n"] == 9007199254740993  # type: ignore[index]


def test_columns_can_be_declared_after_rows_exist(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "x", "n": "12", "other": [1]}).unwrap()
    with sqlite3.connect(world.folder / "a.db") as own:
        own.execute("CREATE INDEX by_title ON todos (title)")
        own.execute("CREATE VIEW titles AS SELECT title FROM todos")
    own.close()

    client.declare("todos", {"n": "integer"}, indexes=[["n"]]).unwrap()
    client.insert("todos", "t2", {"n": "13"}).unwrap()

    rows = client.query("SELECT _row_id, n, other FROM todos ORDER BY n").unwrap()
    assert rows == [
        {"_row_id": "t1", "n": 12, "other": [1]},
        {"_row_id": "t2", "n": 13, "other": None},
    ]
    assert client.query("SELECT * FROM titles WHERE title = 'x'").unwrap() == [{"title": "x"}]
    indexes = client.query("SELECT name FROM pragma_index_list('todos')").unwrap()
    assert "by_title" in [row["name"] for row in indexes]


@pytest.mark.parametrize(
    ("table", "columns", "indexes"),
    [
        ("no-name", {"c": "string"}, []),
        ("t", {"no name": "string"}, []),
        ("t", {"c": "varchar"}, []),
        ("t", {"c": "string"}, [["d"]]),
        ("t", {"c": "string"}, [[]]),
    ],
)
def test_an_invalid_declaration_is_an_err_and_changes_nothing(
    client: Client, table: str, columns: dict[str, str], indexes: list[list[str]]
) -> None:
    assert isinstance(client.declare(table, columns, indexes=indexes), Err)
    assert user_tables(client) == []


@dataclass
class Todo:
    """A row as an app may have it, with its id."""

    _row_id: str
    title: str


def test_a_row_id_among_the_columns_of_an_edit_is_refused(world: World) -> None:
    todo = asdict(Todo("t1", "Buy milk"))
    with world.client() as client:
        client.declare("todos", Todo).unwrap()
        for result in (
            client.insert("todos", "t1", todo),
            client.update("todos", "t1", todo),
            client.upsert("todos", "t1", todo),
            client.insert_many("todos", {"t1": todo}),
        ):
            assert isinstance(result, Err)
            assert isinstance(result.error, ValidationFailed)
            assert "leave _row_id out" in str(result.error)
        assert client.query("SELECT * FROM todos").unwrap() == []
        assert client.pending().unwrap() == []
