"""`query`: it reads, whatever it is asked to do; and what it reads is what an app expects."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client.storage.app_table import compare
from lakesync.result import Err, Ok
from tests.client.support.world import reopened, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.client import Client
    from tests.client.support.world import World


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    return client


NOT_READING = [
    *("BEGIN", "BEGIN IMMEDIATE", "COMMIT", "END", "ROLLBACK", "SAVEPOINT s", "RELEASE s"),
    *("DELETE FROM todos", "UPDATE todos SET title = 'y'", "INSERT INTO todos VALUES ('t2', 'y')"),
    *("CREATE TABLE x (y)", "CREATE TEMP TABLE x (y)", "CREATE TEMP VIEW x AS SELECT 1"),
    *("DROP TABLE todos", "ALTER TABLE todos ADD COLUMN x", "REINDEX", "ANALYZE", "VACUUM"),
    *("DETACH main", "UPDATE _lakesync_sync SET cursor = 0", "EXPLAIN DELETE FROM todos"),
    *("PRAGMA user_version = 7", "PRAGMA query_only = OFF", "PRAGMA writable_schema = ON"),
    *("PRAGMA wal_checkpoint", "PRAGMA optimize", "PRAGMA journal_mode = DELETE"),
    *("WITH t AS (SELECT 1) DELETE FROM todos", "SELECT load_extension('x')"),
]


@pytest.mark.law("K19")
@pytest.mark.parametrize("sql", NOT_READING)
def test_a_query_that_would_write_is_refused(client: Client, sql: str) -> None:
    result = client.query(sql)

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"
    assert "a query only reads" in str(result.error)
    with client._file.database.reading() as connection:
        assert not connection.in_transaction
    client.insert("todos", "t2", {"title": "y"}).unwrap()
    assert len(client.query("SELECT * FROM todos").unwrap()) == 2


@pytest.mark.law("K19")
def test_a_query_cannot_create_a_file(client: Client, tmp_path: Path) -> None:
    for sql in ("ATTACH '{}' AS other", "VACUUM INTO '{}'"):
        other = tmp_path / "other.db"
        assert isinstance(client.query(sql.format(other)), Err)
        assert not other.exists()


@pytest.mark.law("K19")
def test_a_query_of_several_statements_is_refused(client: Client) -> None:
    for sql in ("SELECT 1; SELECT 2", "SELECT 1; DELETE FROM todos"):
        result = client.query(sql)
        assert isinstance(result, Err)
        assert "one statement" in str(result.error)
    assert client.query("SELECT 1 AS x;") == Ok([{"x": 1}])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM pragma_table_info('todos')",
        "PRAGMA table_info(todos)",
        "PRAGMA user_version",
        "SELECT value FROM json_each('[1, 2]')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n",
        "EXPLAIN QUERY PLAN SELECT * FROM todos",
        "SELECT cursor FROM _lakesync_sync",
        "SELECT count(*), max(title) FROM todos GROUP BY _row_id ORDER BY 1",
        "SELECT name FROM sqlite_master",
    ],
)
def test_any_reading_statement_is_accepted_as_a_query(client: Client, sql: str) -> None:
    assert client.query(sql).unwrap()


PARAMETERS: list[Any] = [("\ud800",), (2**70,), (object(),), ([1],), {"x": 1}, 7, None, (), (1, 2)]


@pytest.mark.law("K19")
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_parameters_that_sqlite_cannot_take_are_an_err(client: Client, parameters: Any) -> None:
    result = client.query("SELECT ?", parameters)

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT * FROM nowhere", "\ud800", "SELECT 1\0", 7])
def test_a_query_of_invalid_sql_is_an_err(client: Client, sql: Any) -> None:
    result = client.query(sql)

    assert isinstance(result, Err)
    assert result.error.code == "VALIDATION_ERROR"


def test_result_columns_of_the_same_name_are_numbered(client: Client) -> None:
    client.insert("notes", "n1", {"todo": "t1", "title": "about x"}).unwrap()

    rows = client.query("SELECT * FROM todos JOIN notes ON todo = todos._row_id").unwrap()
    assert rows == [
        {"_row_id": "t1", "title": "x", "_row_id:1": "n1", "todo": "t1", "title:1": "about x"}
    ]
    rows = client.query('SELECT 1 AS a, 2 AS a, 3 AS "a:1", 4 AS a').unwrap()
    assert rows == [{"a": 1, "a:2": 2, "a:1": 3, "a:3": 4}]


def test_declared_decimals_sort_and_compare_as_numbers(client: Client) -> None:
    client.declare("prices", {"price": "decimal(20,10)"}, indexes=[["price"]]).unwrap()
    values = ["9", "10", "-1", "1.10", "1.1000000001", "-12.5", "100", "0.5"]
    for place, value in enumerate(values):
        client.insert("prices", f"p{place}", {"price": value}).unwrap()

    ordered = client.query("SELECT price FROM prices ORDER BY price").unwrap()
    assert [str(row["price"]) for row in ordered] == [
        *("-12.5", "-1", "0.5", "1.10", "1.1000000001", "9", "10", "100")
    ]
    assert client.query("SELECT max(price) AS m FROM prices").unwrap() == [{"m": "100"}]
    assert len(client.query("SELECT 1 FROM prices WHERE price > 9.5").unwrap()) == 2
    assert len(client.query("SELECT 1 FROM prices WHERE price = '1.1'").unwrap()) == 1
    plan = client.query("EXPLAIN QUERY PLAN SELECT * FROM prices WHERE price > 9").unwrap()
    assert "_lakesync_index_" in plan[0]["detail"]
    assert str(rows_of(client)["prices", "p3"]["price"]) == "1.10"


any_text = st.one_of(
    st.decimals(allow_nan=False).map(str), st.text(), st.from_regex(r"-?[0-9.eE+]{1,40}")
)


@given(texts=st.lists(any_text, max_size=8))
def test_the_collation_of_decimals_is_a_consistent_order_of_any_texts(texts: list[str]) -> None:
    for one in texts:
        for other in texts:
            assert compare(one, other) == -compare(other, one)
            for third in texts:
                if compare(one, other) <= 0 and compare(other, third) <= 0:
                    assert compare(one, third) <= 0


def test_an_index_on_decimals_passes_sqlites_integrity_check(client: Client, world: World) -> None:
    client.declare("prices", {"price": "decimal(9,2)"}, indexes=[["price"]]).unwrap()
    other_client = world.client("b")  # which knows of no type
    for place, value in enumerate(["9", "10", "none", "", "1e5", 7, None]):
        other_client.insert("prices", f"p{place}", {"price": value}).unwrap()
    other_client.sync().unwrap()
    client.sync().unwrap()

    assert client.query("PRAGMA integrity_check") == Ok([{"integrity_check": "ok"}])
    with closing(sqlite3.connect(world.folder / "a.db")) as other:  # without the collation
        assert len(other.execute("SELECT price FROM prices").fetchall()) == 7


def test_booleans_read_as_they_were_written(client: Client, world: World) -> None:
    other = world.client("b")
    other.insert("todos", "t2", {"title": "y", "done": None, "late": True}).unwrap()
    other.insert("todos", "t3", {"title": "z", "done": True, "late": False}).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()
    for one in (client, other):
        rows = one.query("SELECT _row_id, done, LATE FROM todos ORDER BY 1 DESC").unwrap()
        read = [(row["done"], row["late"]) for row in rows][:2]
        assert str(read) == "[(True, False), (None, True)]"
        assert one.query("SELECT 1 FROM todos WHERE done AND NOT late").unwrap()
        assert str(one.query("SELECT count(*) AS n FROM todos WHERE done").unwrap()) == "[{'n': 1}]"
    with client.transaction() as tx:
        tx.update("todos", "t1", {"done": False}).unwrap()
        row = tx.query("SELECT done FROM todos WHERE _row_id = 't1'").unwrap()
    assert str(row) == "[{'done': False}]"


def test_a_column_that_mixes_numbers_and_booleans_reads_each_as_it_was_written(
    client: Client, world: World
) -> None:
    client.insert("t", "r1", {"a": True, "b": 1}).unwrap()
    assert str(client.query("SELECT a, b FROM t").unwrap()) == "[{'a': True, 'b': 1}]"
    client.insert("t", "r2", {"a": 0, "b": False}).unwrap()
    client.insert("t", "r3", {"a": False, "b": True}).unwrap()

    expected = "[{'a': True, 'b': 1}, {'a': 0, 'b': False}, {'a': False, 'b': True}]"
    assert str(client.query("SELECT a, b FROM t ORDER BY _row_id").unwrap()) == expected
    again = reopened(world, client)
    assert str(again.query("SELECT a, b FROM t ORDER BY _row_id").unwrap()) == expected
    assert str(again.get("t", "r3").unwrap()) == "{'a': False, 'b': True}"


def test_a_number_written_by_another_process_into_a_boolean_column_reads_as_a_number(
    client: Client, world: World
) -> None:
    client.insert("t", "r1", {"a": True}).unwrap()
    with world.client("a") as other:
        assert str(other.query("SELECT a FROM t").unwrap()) == "[{'a': True}]"
        client.insert("t", "r2", {"a": 0}).unwrap()
        assert str(other.query("SELECT a FROM t").unwrap()) == "[{'a': True}, {'a': 0}]"


def test_a_rolled_back_number_does_not_change_how_a_boolean_column_reads(client: Client) -> None:
    client.insert("t", "r1", {"a": True}).unwrap()
    with suppress(ZeroDivisionError), client.transaction() as tx:
        tx.insert("t", "r2", {"a": 7}).unwrap()
        raise ZeroDivisionError

    assert str(client.query("SELECT a FROM t").unwrap()) == "[{'a': True}]"
