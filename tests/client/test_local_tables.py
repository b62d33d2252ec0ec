"""Local tables: made and written by `execute`, beside edits, and never sent anywhere."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING

import pytest

from lakesync.errors import LakeSyncError
from lakesync.result import Err
from tests.client.support.world import World, check_sound
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.client import Client

pytestmark = pytest.mark.law("K29")

DRAFTS = "CREATE TABLE IF NOT EXISTS drafts (id INTEGER PRIMARY KEY, text TEXT NOT NULL)"
ADD = "INSERT INTO drafts (text) VALUES (?)"


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    assert client.execute(DRAFTS).unwrap() == 0
    client.sync().unwrap()
    return client


def drafts(client: Client) -> list[object]:
    return [
        text for (text,) in client.query("SELECT text FROM drafts ORDER BY id", as_=tuple).unwrap()
    ]


def test_a_local_tables_rows_are_written_and_queried_without_entering_the_outbox(
    client: Client,
) -> None:
    client.execute(DRAFTS).unwrap()
    assert client.execute("INSERT INTO drafts (text) VALUES ('a'), (:b)", {"b": "b"}).unwrap() == 2
    assert client.execute("UPDATE drafts SET text = 'c' WHERE text = 'a'").unwrap() == 1
    assert client.execute("DELETE FROM Drafts WHERE text = 'none'").unwrap() == 0
    client.execute("CREATE INDEX by_text ON drafts (text)").unwrap()
    client.execute("ALTER TABLE drafts ADD COLUMN colour TEXT").unwrap()

    assert drafts(client) == ["c", "b"]
    assert client.pending().unwrap() == []
    check_sound(client)

    client.execute("DROP TABLE drafts").unwrap()
    assert isinstance(client.query("SELECT * FROM drafts"), Err)


def test_a_view_can_be_created_queried_watched_and_dropped(client: Client) -> None:
    client.execute("CREATE VIEW titles AS SELECT _row_id, title FROM todos").unwrap()
    client.execute("CREATE VIEW IF NOT EXISTS titles AS SELECT 1").unwrap()
    with client.watch("SELECT title FROM titles", as_=tuple) as rows:
        assert next(rows) == [("x",)]
        client.update("todos", "t1", {"title": "y"}).unwrap()
        assert next(rows) == [("y",)]
    with pytest.raises(LakeSyncError, match="because it is a view"):
        client.execute("INSERT INTO titles (title) VALUES ('z')").unwrap()
    with pytest.raises(LakeSyncError, match="LakeSync's or SQLite's own"):
        client.execute("CREATE VIEW _lakesync_titles AS SELECT 1").unwrap()

    client.execute("DROP VIEW titles").unwrap()
    assert isinstance(client.query("SELECT * FROM titles"), Err)
    assert len(client.pending().unwrap()) == 1
    check_sound(client)


@pytest.mark.law("K9")
def test_a_view_and_a_synced_table_may_not_share_a_name(client: Client) -> None:
    client.execute("CREATE VIEW coming AS SELECT 1 AS n").unwrap()
    with pytest.raises(LakeSyncError, match="the app has a view named coming"):
        client.insert("coming", "c1").unwrap()
    with pytest.raises(LakeSyncError, match="already exists"):
        client.execute("CREATE VIEW todos AS SELECT 1 AS n").unwrap()


@pytest.mark.parametrize("kind", ["TABLE", "VIEW", "INDEX"])
def test_drop_if_exists_of_a_missing_object_is_no_error(client: Client, kind: str) -> None:
    assert client.execute(f"DROP {kind} IF EXISTS nowhere").unwrap() == 0
    assert isinstance(client.execute(f"DROP {kind} nowhere"), Err)


def test_local_writes_and_edits_of_one_transaction_are_committed_together_or_not_at_all(
    client: Client,
) -> None:
    with client.transaction() as tx:
        tx.execute(ADD, ("kept",)).unwrap()
        tx.update("todos", "t1", {"title": "y"}).unwrap()
    assert drafts(client) == ["kept"]

    def fail(sql: str) -> None:
        with client.transaction() as tx:
            tx.execute(ADD, ("lost",)).unwrap()
            tx.update("todos", "t1", {"title": "z"}).unwrap()
            tx.execute(sql)
            tx.update("todos", "t1", {"title": "behind"})

    for sql in (
        "INSERT INTO drafts (text) VALUES ('half'), (NULL)",
        "INSERT OR ROLLBACK INTO drafts (text) VALUES ('half'), (NULL)",
        "INSERT INTO nowhere VALUES (1)",
    ):
        with pytest.raises(LakeSyncError, match=r"drafts\.text|no such table"):
            fail(sql)

    assert drafts(client) == ["kept"]
    assert client.get("todos", "t1").unwrap() == {"title": "y"}
    check_sound(client)


def test_a_write_of_a_local_table_reaches_watches_and_change_callbacks(client: Client) -> None:
    changes: queue.Queue[frozenset[str]] = queue.Queue()
    with client.watch("SELECT text FROM drafts", as_=tuple) as rows:
        assert next(rows) == []
        with client.on_change(changes.put, tables=["drafts"]):
            client.execute(ADD, ("a",)).unwrap()
            assert next(rows) == [("a",)]
            assert changes.get(timeout=PATIENCE_S) == {"drafts"}
            client.execute(ADD, ("b",)).unwrap()
            assert next(rows) == [("a",), ("b",)]
            assert changes.get(timeout=PATIENCE_S) == {"drafts"}


def test_a_synced_table_with_a_local_tables_name_gets_another_sql_name(
    world: World, client: Client
) -> None:
    client.execute(ADD, ("mine",)).unwrap()
    other = world.client("b")
    other.insert("drafts", "d1", {"text": "theirs"}).unwrap()
    other.sync().unwrap()

    client.sync().unwrap()

    assert client.get("drafts", "d1").unwrap() == {"text": "theirs"}
    assert drafts(client) == ["mine"]
    assert client.sql_name("drafts").unwrap() != "drafts"
    client.execute(ADD, ("more",)).unwrap()
    assert drafts(client) == ["mine", "more"]
    assert client.pending().unwrap() == []


def test_a_restored_gateway_leaves_local_tables_unchanged(world: World, client: Client) -> None:
    client.execute(ADD, ("mine",)).unwrap()
    del world.gateway.commits[:]
    world.gateway.epoch = "here.1"

    client.sync().unwrap()

    assert drafts(client) == ["mine"]
    check_sound(client)
