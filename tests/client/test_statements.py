"""`execute`: INSERT, UPDATE and DELETE in SQL become edits, or are refused with the reason."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.delta import Op
from lakesync.errors import LakeSyncError
from lakesync.result import Err
from tests.client.support.world import World, check_sound, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.client import Client


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    columns = {"title": "string", "done": "boolean", "n": "integer", "tags": "json"}
    client.declare("todos", columns | {"photo": "bytes", "due": "date"}).unwrap()
    client.insert("todos", "t1", {"title": "x", "done": False, "n": 1}).unwrap()
    client.insert("todos", "t2", {"title": "y", "done": False, "tags": ["a"]}).unwrap()
    client.sync().unwrap()
    return client


def edits(client: Client) -> list[tuple[str, str, dict[str, Any]]]:
    """Return what waits: the operation, the row, and the columns that it writes."""
    return [
        (
            entry.delta.op.name,
            entry.delta.row_id,
            {name: json.loads(value) for name, value in entry.delta.columns},
        )
        for entry in client.pending().unwrap()
    ]


UPSERT = """
INSERT INTO todos (_row_id, n) VALUES ('t1', 7), ('t5', 7)
ON CONFLICT (_row_id) DO UPDATE SET n = excluded.n
"""
WITH = """
WITH more AS (SELECT _row_id AS id FROM todos WHERE n = 9)
UPDATE todos SET due = ?, photo = ? WHERE _row_id IN (SELECT id FROM more)
"""
BECOMES: list[tuple[str, Any, int, list[tuple[str, str, dict[str, Any]]]]] = [
    (
        "UPDATE todos SET done = 1 WHERE title = ?",
        ("x",),
        1,
        [("UPDATE", "t1", {"done": True})],
    ),
    ("UPDATE Todos SET n = n + 1, title = title", (), 2, [("UPDATE", "t1", {"n": 2})]),
    (
        "INSERT INTO todos (_row_id, title, done) VALUES (:id, 'z', TRUE), ('t4', NULL, 0)",
        {"id": "t3"},
        2,
        [("INSERT", "t3", {"title": "z", "done": True}), ("INSERT", "t4", {"done": False})],
    ),
    (
        "DELETE FROM todos WHERE _row_id > 't2'",
        (),
        2,
        [("DELETE", "t3", {}), ("DELETE", "t4", {})],
    ),
    (
        "UPDATE todos SET tags = ? WHERE n IS NULL",
        (["b"],),
        1,
        [("UPDATE", "t2", {"tags": ["b"]})],
    ),
    ("UPDATE todos SET title = NULL WHERE n = 2", (), 1, [("UPDATE", "t1", {"title": None})]),
    (
        UPSERT,
        (),
        2,
        [("UPDATE", "t1", {"n": 7}), ("INSERT", "t5", {"n": 7})],
    ),
    ("INSERT OR IGNORE INTO todos (_row_id, n) VALUES ('t1', 8)", (), 0, []),
    (
        "REPLACE INTO todos (_row_id, n) VALUES ('t5', 9)",
        (),
        2,
        [("DELETE", "t5", {}), ("INSERT", "t5", {"n": 9})],
    ),
    (
        WITH,
        (date(2026, 5, 17), b"hello"),
        1,
        [("UPDATE", "t5", {"due": "2026-05-17", "photo": "aGVsbG8="})],
    ),
    ("DELETE FROM todos WHERE 0", (), 0, []),
]


@pytest.mark.law("K25")
def test_a_statement_becomes_edits_of_the_rows_and_columns_it_changes(client: Client) -> None:
    for sql, parameters, count, expected in BECOMES:
        assert client.execute(sql, parameters).unwrap() == count
        assert edits(client) == expected, sql
        check_sound(client)
        client.sync().unwrap()
    assert rows_of(client)["todos", "t1"]["title"] is None


@pytest.mark.law("K25")
def test_a_statement_that_changes_several_rows_is_pushed_as_one_transaction(
    world: World, client: Client
) -> None:
    world.gateway.pushes.clear()
    client.execute("UPDATE todos SET n = 5").unwrap()
    client.push().unwrap()
    (push,) = world.gateway.pushes
    assert push.atomic
    assert len(push.deltas) == 2


@pytest.mark.law("K25")
def test_a_statement_writes_only_changed_columns_so_other_clients_edits_survive(
    world: World, client: Client
) -> None:
    other = world.client("b")
    other.sync().unwrap()
    other.update("todos", "t1", {"title": "theirs"}).unwrap()
    other.sync().unwrap()
    client.execute("UPDATE todos SET title = 'x', n = 2 WHERE _row_id = 't1'").unwrap()
    client.sync().unwrap()
    assert client.get("todos", "t1").unwrap() == {"title": "theirs", "done": False, "n": 2}


REFUSED: list[tuple[Any, Any, str]] = [
    ("SELECT * FROM todos", (), "execute writes"),
    ("DROP TABLE todos", (), "todos is a synced table"),
    ("ALTER TABLE Todos RENAME TO others", (), "is a synced table"),
    ("CREATE UNIQUE INDEX i ON todos (title)", (), "indexes are declared"),
    ("CREATE TABLE _lakesync_mine (x)", (), "LakeSync's or SQLite's own"),
    ("CREATE TEMP TABLE mine (x)", (), "synced tables are declared"),
    ("CREATE TEMP VIEW mine AS SELECT 1", (), "synced tables are declared"),
    ("INSERT OR ROLLBACK INTO todos (_row_id) VALUES ('t9'), ('t1')", (), "the row is there"),
    ("INSERT OR ROLLBACK INTO own VALUES (1), (NULL)", (), "NOT NULL"),
    ("INSERT INTO own VALUES (1) RETURNING x", (), "RETURNING"),
    ("INSERT INTO own VALUES (1), (NULL)", (), "NOT NULL"),
    ("INSERT INTO carried VALUES (1)", (), "a trigger of the app writes to the synced table todos"),
    ("PRAGMA user_version = 7", (), "synced tables are declared"),
    ("ATTACH 'x.db' AS x", (), "synced tables are declared"),
    ("COMMIT", (), "synced tables are declared"),
    ("SAVEPOINT x", (), "synced tables are declared"),
    ("DELETE FROM _lakesync_outbox", (), "LakeSync's or SQLite's own"),
    ("UPDATE _lakesync_sync SET cursor = 7", (), "LakeSync's or SQLite's own"),
    ("INSERT INTO shown (_row_id) VALUES ('t9')", (), "cannot modify shown"),
    ("DELETE FROM sqlite_master", (), ""),
    ("UPDATE todos SET _row_id = 't9' WHERE n = 1", (), "keeps its _row_id"),
    ("INSERT INTO todos (title) VALUES ('x')", (), "name it"),
    ("INSERT INTO todos (_row_id) VALUES ('t1')", (), "the row is there"),
    ("INSERT INTO todos (_row_id, colour) VALUES ('t9', 1)", (), "declare it"),
    ("UPDATE nowhere SET x = 1", (), "declare it first"),
    ("UPDATE todos SET title = ?", (b"bytes",), "need the type bytes"),
    ("UPDATE todos SET n = 9e999", (), ""),
    ("INSERT INTO todos (_row_id) VALUES ('')", (), ""),
    ("DELETE FROM todos RETURNING *", (), "RETURNING"),
    ("DELETE FROM todos; DELETE FROM todos", (), "one statement"),
    ("UPDATE todos SET title = ?", (), "binding"),
    ("UPDATE todos SET title = ?", (object(),), ""),
    ("\ud800", (), ""),
    ("", (), "incomplete"),
    (7, (), ""),
]


@pytest.mark.law("K25")
@pytest.mark.parametrize(("sql", "parameters", "reason"), REFUSED)
def test_a_statement_that_cannot_become_edits_is_refused_and_writes_nothing(
    client: Client, sql: Any, parameters: Any, reason: str, tmp_path: Path
) -> None:
    with client._file.database.transaction() as connection:
        connection.execute("CREATE TABLE own (x NOT NULL)")
        connection.execute("CREATE TABLE carried (x)")
        connection.execute(
            "CREATE TRIGGER carry AFTER INSERT ON carried "
            "BEGIN UPDATE todos SET n = NEW.x WHERE _row_id = 't1'; END"
        )
        connection.execute("CREATE VIEW shown AS SELECT * FROM todos")
    before = rows_of(client)

    result = client.execute(sql, parameters)

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"
    assert reason in str(result.error)
    assert rows_of(client) == before
    assert edits(client) == []
    assert client.query("SELECT x FROM own UNION ALL SELECT x FROM carried").unwrap() == []
    check_sound(client)
    assert not list(tmp_path.glob("x.db"))
    client.execute("UPDATE todos SET n = 3 WHERE _row_id = 't1'").unwrap()
    assert edits(client) == [("UPDATE", "t1", {"n": 3})]


@pytest.mark.law("K25", "K1")
def test_statements_and_edits_of_a_transaction_are_committed_together_or_not_at_all(
    client: Client,
) -> None:
    with client.transaction() as tx:
        tx.insert("todos", "t3", {"n": 3})
        assert tx.execute("UPDATE todos SET n = n + 1 WHERE n > 0").unwrap() == 2
        assert tx.query("SELECT sum(n) AS n FROM todos").unwrap() == [{"n": 6}]
    assert edits(client) == [
        ("INSERT", "t3", {"n": 3}),
        ("UPDATE", "t1", {"n": 2}),
        ("UPDATE", "t3", {"n": 4}),
    ]

    def fail() -> None:
        with client.transaction() as tx:
            tx.execute("DELETE FROM todos")
            tx.execute("UPDATE todos SET colour = 1")

    with pytest.raises(LakeSyncError, match="no such column"):
        fail()
    assert len(client.query("SELECT 1 FROM todos").unwrap()) == 3
    check_sound(client)


@pytest.mark.law("K25")
def test_a_trigger_of_the_app_fires_once_for_each_row_of_a_statement(client: Client) -> None:
    with client._file.database.transaction() as connection:
        connection.execute("CREATE TABLE counted (row_id)")
        connection.execute(
            "CREATE TRIGGER counts AFTER INSERT ON todos BEGIN "
            "INSERT INTO counted VALUES (NEW._row_id); END"
        )
    client.execute("INSERT INTO todos (_row_id, n) VALUES ('t8', 1), ('t9', 2)").unwrap()
    assert client.query("SELECT * FROM counted", as_=tuple).unwrap() == [("t8",), ("t9",)]


@pytest.mark.law("K25")
def test_statements_write_tables_of_many_columns_and_columns_added_later(world: World) -> None:
    client = world.client()
    names = [f"c{number}" for number in range(250)]
    client.declare("wide", dict.fromkeys(names, "integer")).unwrap()
    columns, marks = ", ".join(names), ", ".join(map(str, range(250)))
    client.execute(f"INSERT INTO wide (_row_id, {columns}) VALUES ('w', {marks})").unwrap()  # noqa: S608
    assert client.get("wide", "w").unwrap() == {name: int(name[1:]) for name in names}
    client.update("wide", "w", {"later": "x", "order": 1}).unwrap()
    client.execute('UPDATE wide SET later = later || ?, "order" = 2, c249 = 0', ("y",)).unwrap()
    row = client.get("wide", "w").unwrap()
    assert row is not None
    assert (row["later"], row["order"], row["c249"], row["c248"]) == ("xy", 2, 0, 248)
    check_sound(client)


def test_statements_write_values_of_the_columns_types(world: World) -> None:
    client = world.client()
    client.insert("things", "a", {"flag": True, "list": [1], "text": "x"}).unwrap()
    client.declare("things", {"price": "decimal(9,2)", "at": "timestamp", "raw": "json"}).unwrap()
    at = datetime(2026, 5, 17, 8, tzinfo=UTC)
    client.execute(
        "UPDATE things SET flag = 0, list = ?, text = '[1]', price = ?, at = ?, raw = ?",
        ([1, 2], Decimal("12.30"), at, {"a": 1}),
    ).unwrap()
    assert client.get("things", "a").unwrap() == {
        "flag": False,
        "list": [1, 2],
        "text": "[1]",
        "price": Decimal("12.30"),
        "at": at,
        "raw": {"a": 1},
    }


STATEMENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "INSERT OR REPLACE INTO items (_row_id, a, b) VALUES (:id, :x, :y)",
                "INSERT OR IGNORE INTO items (_row_id, a) VALUES (:id, :x)",
                "INSERT INTO items (_row_id, b) VALUES (:id, :y) ON CONFLICT DO UPDATE SET a = :x",
                "UPDATE items SET a = :x WHERE _row_id <= :id",
                "UPDATE items SET a = b, b = a WHERE _row_id = :id",
                "UPDATE items SET b = :y",
                "DELETE FROM items WHERE _row_id = :id",
                "DELETE FROM items WHERE a IS :x",
            ]
        ),
        st.sampled_from(["r1", "r2", "r3"]),
        st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["", "text", "[1]"])),
        st.one_of(st.none(), st.floats(-2, 2), st.integers(0, 1)),
    ),
    max_size=12,
)


@pytest.mark.law("K25")
@given(statements=STATEMENTS)
@settings(max_examples=40)
def test_statements_have_the_same_effect_as_in_plain_sqlite(
    statements: list[tuple[str, str, object, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    client, plain = world.client(), sqlite3.connect(":memory:")
    client.declare("items", {"a": "json", "b": "json"}).unwrap()
    plain.execute("CREATE TABLE items (_row_id TEXT PRIMARY KEY NOT NULL, a, b) WITHOUT ROWID")
    for sql, row_id, x, y in statements:
        values = {"id": row_id, "x": x, "y": y}
        client.execute(sql, values).unwrap()
        plain.execute(sql, values)
        # Under other names the cells are as SQLite stores them.
        query = "SELECT _row_id, a AS x, b AS y FROM items ORDER BY 1"
        rows = client.query(query, as_=tuple).unwrap()
        assert rows == plain.execute("SELECT * FROM items ORDER BY 1").fetchall()
    check_sound(client)
    client.sync().unwrap()
    assert world.rows() == rows_of(client)
    world.close()
    plain.close()


def test_execute_leaves_no_trigger_in_the_file(client: Client, world: World) -> None:
    client.execute("UPDATE todos SET n = 3").unwrap()
    client.close()
    with sqlite3.connect(world.folder / "a.db") as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        assert triggers.fetchall() == []
    connection.close()
    again = world.client()
    again.execute("UPDATE todos SET n = 4 WHERE n = 3").unwrap()
    assert edits(again)[-1][0] == Op.UPDATE.name


def test_insert_many_inserts_all_rows_or_none(world: World) -> None:
    client = world.client()
    rows = {f"t{number}": {"n": number} for number in range(700)}
    assert client.insert_many("todos", rows).unwrap() == 700
    assert client.insert_many("todos", {}).unwrap() == 0
    bad: dict[str, Any] = {"u1": {"n": 1}, "u2": {"n": object()}}
    wrong: list[Any] = [bad, [("u1", {})], {"u1": {}, "": {}}, {"u1": 7}]
    for rows_of_wrong in wrong:
        result = client.insert_many("todos", rows_of_wrong)
        assert isinstance(result, Err)
        assert result.error.code == "VALIDATION_ERROR"
    assert client.query("SELECT count(*) AS n FROM todos").unwrap() == [{"n": 700}]
    client.sync().unwrap()
    assert [push.atomic for push in world.gateway.pushes] == [False, False]
    assert world.rows() == rows_of(client)
    check_sound(client)
