"""Live queries: the rows now and after each change, whoever makes it, and never a half of one."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from lakesync.client import Client
from lakesync.client.change_feed import Unchanged
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.result import Err
from tests.support.waiting import PATIENCE_S, waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Watch
    from tests.client.support.world import World

SOON_S = PATIENCE_S
"""Longer than anything here takes, so that a test that fails does so by its assertion."""
ELSEWHERE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute(sys.argv[2])
"""
NEVER_S = 0.3
"""How long to look for what must not come."""


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.insert("todos", "t1", {"title": "x", "done": False}).unwrap()
    return client


def following(watch: Watch[Any], wanted: Callable[[Any], bool]) -> Any:
    """Return the first state of a watch that is as wanted."""
    while (value := watch.next(SOON_S)) is not None:
        if wanted(value):
            return value
    pytest.fail("no such state came")


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another thread brings about."""
    assert waited(holds)


@pytest.mark.law("K21")
def test_a_watch_returns_the_rows_at_once_and_after_each_change(client: Client) -> None:
    with client.watch("SELECT _row_id, done FROM todos ORDER BY 1") as watch:
        assert next(watch) == [{"_row_id": "t1", "done": False}]
        client.update("todos", "t1", {"done": True}).unwrap()
        assert next(watch) == [{"_row_id": "t1", "done": True}]
        client.insert("todos", "t2", {"done": False}).unwrap()
        assert [row["_row_id"] for row in next(watch)] == ["t1", "t2"]
        client.delete("todos", "t1").unwrap()
        assert [row["_row_id"] for row in next(watch)] == ["t2"]


@pytest.mark.law("K21")
def test_a_watch_returns_nothing_while_its_rows_stay_the_same(client: Client) -> None:
    with client.watch("SELECT title FROM todos") as watch:
        next(watch)
        client.update("todos", "t1", {"done": True}).unwrap()
        client.insert("notes", "n1", {"title": "y"}).unwrap()
        assert watch.next(NEVER_S) is None


def test_a_watch_subscribes_only_to_the_tables_its_query_reads(client: Client) -> None:
    client.insert("notes", "n1", {"todo": "t1"}).unwrap()
    with client._file.database.transaction() as connection:
        connection.execute("CREATE VIEW shown AS SELECT n.* FROM notes n JOIN todos t ON true")
    for sql, tables in (
        ("SELECT count(*) FROM todos", {"todos"}),
        ("SELECT 1 FROM Todos WHERE _row_id IN (SELECT todo FROM notes)", {"todos", "notes"}),
        ("SELECT * FROM shown", {"todos", "notes", "shown"}),
        ("SELECT value FROM todos, json_each('[1]')", None),  # SQLite names its own too
        ("SELECT count(*) FROM _lakesync_outbox", None),
        ("SELECT 1", None),
    ):
        with client.watch(sql) as watch:
            assert watch.tables == (tables and frozenset(tables))
    with client.watch("SELECT * FROM shown", tables=["Notes"]) as watch:
        assert watch.tables == frozenset({"notes"})


@pytest.mark.law("K21")
def test_a_watch_returns_rows_changed_by_a_pull(world: World, client: Client) -> None:
    other = world.client("b")
    with other.watch("SELECT * FROM sqlite_master WHERE name = 'todos'") as watch:
        assert next(watch) == []
        client.push().unwrap()
        other.pull().unwrap()
        assert len(next(watch)) == 1
    with other.watch("SELECT title FROM todos") as watch:
        assert next(watch) == [{"title": "x"}]
        client.update("todos", "t1", {"title": "y"}).unwrap()
        client.push().unwrap()
        other.pull().unwrap()
        assert next(watch) == [{"title": "y"}]


@pytest.mark.law("K21")
def test_a_watch_returns_rows_changed_by_another_process(world: World, client: Client) -> None:
    path = world.folder / "a.db"
    with client.watch("SELECT title FROM todos") as watch:
        next(watch)
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(path), "UPDATE todos SET title = 'elsewhere'"],
            check=True,
        )
        assert next(watch) == [{"title": "elsewhere"}]
        same_file = Client(path, client_id="a", transport=world.transport())
        same_file.update("todos", "t1", {"title": "again"}).unwrap()
        assert next(watch) == [{"title": "again"}]
        same_file.close()


@pytest.mark.law("K21")
def test_watches_see_the_final_rows_and_only_whole_transactions(
    world: World, client: Client
) -> None:
    """Money moves between accounts, by transactions and by pages; its sum stays."""
    with client.transaction() as tx:
        for name in ("a1", "a2", "a3"):
            tx.insert("accounts", name, {"cents": 100})
    client.sync().unwrap()
    reader = world.client("b")
    reader.sync().unwrap()
    sums: dict[str, list[int]] = {"a": [], "b": []}
    last: dict[str, list[tuple[object, ...]]] = {}

    def follow(who: Client) -> None:
        for rows in who.watch("SELECT _row_id, cents FROM accounts ORDER BY 1", as_=tuple):
            last[who.client_id] = rows
            sums[who.client_id].append(sum(cents for _, cents in rows))

    threads = [threading.Thread(target=follow, args=(who,)) for who in (client, reader)]
    for thread in threads:
        thread.start()
    balance = {"a1": 100, "a2": 100, "a3": 100}
    for turn in range(60):
        giver, taker = f"a{turn % 3 + 1}", f"a{(turn * 7 + 1) % 3 + 1}"
        balance[giver] -= turn
        balance[taker] += turn
        with client.transaction() as tx:
            tx.update("accounts", giver, {"cents": balance[giver]})
            tx.update("accounts", taker, {"cents": balance[taker]})
        if turn % 10 == 9:
            client.push().unwrap()
            reader.pull().unwrap()
    final = sorted(balance.items())
    for who in (client, reader):
        with who.watch("SELECT _row_id, cents FROM accounts ORDER BY 1", as_=tuple) as watch:
            following(watch, lambda rows: rows == final)
    wait_until(lambda: last == {"a": final, "b": final})
    client.close()
    reader.close()
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert all(total == 300 for totals in sums.values() for total in totals)


def test_a_watch_gathers_a_burst_of_changes(world: World) -> None:
    client = world.client(gather_ms=200)
    client.insert("todos", "t0", {}).unwrap()
    with client.watch("SELECT count(*) AS n FROM todos") as watch:
        next(watch)
        for turn in range(50):
            client.insert("todos", f"t{turn + 1}", {}).unwrap()
        states = [value[0]["n"] for value in iter(lambda: watch.next(0.5), None)]
    assert states[-1] == 51
    assert len(states) <= 10


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("SELEC 1", ()),
        ("SELECT * FROM nowhere", ()),
        ("DELETE FROM todos", ()),
        ("SELECT 1; SELECT 2", ()),
        ("SELECT ?", ()),
        ("SELECT :x", {"y": 1}),
        ("", ()),
        (7, ()),
        ("\ud800", ()),
    ],
)
@pytest.mark.law("K21")
def test_watching_an_invalid_query_is_refused_at_once(
    client: Client, sql: Any, parameters: Any
) -> None:
    with pytest.raises(ValidationFailed):
        client.watch(sql, parameters)
    assert len(client._feed._subscribers) == 0


def test_watching_a_missing_table_is_refused_with_the_advice_to_declare_it(client: Client) -> None:
    with pytest.raises(ValidationFailed, match="declare it first"):
        client.watch("SELECT * FROM nowhere")


@pytest.mark.law("K21")
def test_a_watch_ends_when_it_or_its_client_is_closed_by_another_thread(client: Client) -> None:
    watch = client.watch("SELECT 1")
    for close in ("watch", "client"):
        watch = client.watch("SELECT * FROM todos")
        assert next(watch)
        timer = threading.Timer(0.05, watch.close if close == "watch" else client.close)
        timer.start()
        assert list(watch) == []
        timer.join()
    assert list(watch) == []
    with pytest.raises(LakeSyncError, match="closed"):
        client.watch("SELECT * FROM todos")


@pytest.mark.law("K21")
def test_thousands_of_watches_share_a_thread_and_leave_no_subscription_behind(
    client: Client,
) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "lakesync" in thread.name]

    watches = [client.watch("SELECT title FROM todos WHERE done = ?", (n,)) for n in range(3_000)]
    assert sum(len(next(watch)) for watch in watches) == 1
    client.update("todos", "t1", {"title": "y"}).unwrap()
    assert next(watches[0]) == [{"title": "y"}]
    assert threads() == ["lakesync-watch"]
    for closed in range(1_000):
        watches[closed].close()
    watches.clear()
    for _ in client.watch("SELECT 1"):
        break
    gc.collect()
    wait_until(lambda: len(client._feed._subscribers) == 0)
    wait_until(lambda: threads() == [])
    assert client.watch("SELECT title FROM todos").next(SOON_S) == [{"title": "y"}]


def test_a_watch_whose_query_fails_raises_and_recovers(client: Client) -> None:
    with client.watch("SELECT extra FROM (SELECT 1 AS extra), todos") as watch:
        next(watch)
        with client._file.database.transaction() as connection:
            connection.execute("ALTER TABLE todos RENAME TO away")
        client.insert("notes", "n1", {}).unwrap()
        watch.wake(None)  # type: ignore[arg-type]
        with pytest.raises(ValidationFailed, match="no such table"):
            next(watch)
        with client._file.database.transaction() as connection:
            connection.execute("ALTER TABLE away RENAME TO todos")
        assert isinstance(watch.take(), Unchanged)


@dataclass
class Todo:
    """What an app may have of its own."""

    _row_id: str
    title: str
    done: bool | None = None
    due: date | None = None
    made: datetime | None = None
    price: Decimal | None = None
    photo: bytes | None = None
    tags: list[str] | None = None
    weight: float | None = None


class TodoModel(BaseModel):
    """The same for pydantic."""

    title: str
    done: bool
    due: date | None = None


COLUMNS = {
    "title": "x",
    "done": True,
    "due": "2026-05-17",
    "made": "2026-05-17T08:00:00Z",
    "price": "12.30",
    "photo": "aGVsbG8=",
    "tags": ["a", "b"],
    "weight": 2,
    "unknown": 1,
}


def test_rows_can_be_read_as_tuples_dataclasses_or_models(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", COLUMNS).unwrap()

    assert client.query("SELECT title, done FROM todos", as_=tuple).unwrap() == [("x", True)]
    (todo,) = client.query("SELECT * FROM todos", as_=Todo).unwrap()
    assert todo == Todo(
        "t1",
        "x",
        True,
        date(2026, 5, 17),
        datetime.fromisoformat("2026-05-17T08:00:00+00:00"),
        Decimal("12.30"),
        b"hello",
        ["a", "b"],
        2.0,
    )
    assert isinstance(todo.weight, float)
    (model,) = client.query("SELECT * FROM todos", as_=TodoModel).unwrap()
    assert model == TodoModel(title="x", done=True, due=date(2026, 5, 17))
    with client.watch("SELECT * FROM todos", as_=Todo) as watch:
        assert next(watch) == [todo]


def test_rows_that_do_not_fit_the_requested_class_are_an_err_with_the_reason(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "x", "due": "tomorrow", "done": "yes"}).unwrap()
    wrong: list[tuple[str, Any, str]] = [
        ("SELECT title FROM todos", Todo, "Todo needs _row_id"),
        ("SELECT * FROM todos", Todo, "a row is no Todo"),
        ("SELECT title, due FROM todos", TodoModel, "a row is no TodoModel"),
        ("SELECT * FROM todos", list, "as_ is dict, tuple, a dataclass or a pydantic model"),
        ("SELECT * FROM todos", 7, "as_ is dict"),
    ]
    for sql, as_, sentence in wrong:
        result = client.query(sql, as_=as_)
        assert isinstance(result, Err)
        assert result.error.code == "VALIDATION_ERROR"
        assert sentence in str(result.error)
