"""An insert of a new row is durable without its row state, and nothing can tell the difference."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client.storage.stored_rows import UNFOLDED_EDITS_MAX
from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.result import Err, Ok
from tests.client.support.world import World, check_sound, rows_of, states_of
from tests.support.hooked_connection import HookedConnection

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from lakesync.client import Client

LIMIT = "lakesync.client.storage.stored_rows.UNFOLDED_EDITS_MAX"


def states_written(client: Client) -> int:
    """Count the row states in a client's file."""
    (row,) = client.query("SELECT count(*) AS states FROM _lakesync_rows").unwrap()
    states: int = row["states"]
    return states


def fold(client: Client) -> None:
    """Have all states written, as any transaction does first."""
    with client.transaction():
        pass


@pytest.mark.law("K1")
def test_an_insert_writes_only_the_row_and_the_outbox_entry(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    statements: list[str] = []
    writer = client._file.database.writer
    writer.set_trace_callback(statements.append)

    client.insert("todos", "t2", {"title": "y"}).unwrap()
    writer.set_trace_callback(None)

    written = [sql.split("(")[0].strip() for sql in statements if sql.startswith("INSERT")]
    assert written == ['INSERT INTO "todos"', "INSERT INTO _lakesync_outbox"]
    assert states_written(client) == 0
    check_sound(client)


@pytest.mark.law("K1")
@pytest.mark.parametrize("op", ["insert", "update"])
def test_a_refused_edit_writes_nothing_and_causes_no_reload(world: World, op: str) -> None:
    client = world.client()
    client.declare("todos", {"due": "date"}).unwrap()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    reloads: list[None] = []
    statements: list[str] = []
    client._file.database.on_reload(lambda: reloads.append(None))
    client._file.database.writer.set_trace_callback(statements.append)

    refused: Any = getattr(client, op)("todos", "t1", {"due": "tomorrow"})
    assert refused.error.code == "SCHEMA_ERROR"
    assert not [sql for sql in statements if sql.startswith(("INSERT", "UPDATE", "DELETE"))]
    client.update("todos", "t1", {"title": "y"}).unwrap()

    assert reloads == []
    assert client.get("todos", "t1").unwrap() == {"title": "y"}
    check_sound(client)


@pytest.mark.law("K1")
def test_a_refused_edit_creates_no_table(world: World) -> None:
    client = world.client()

    refused: Any = client.insert("todos", "t1", {"title": float("nan")})
    assert refused.error.code == "VALIDATION_ERROR"

    assert isinstance(client.query("SELECT * FROM todos"), Err)
    client.insert("todos", "t1", {"name": "x"}).unwrap()
    assert client.query("SELECT * FROM todos") == Ok([{"_row_id": "t1", "name": "x"}])
    check_sound(client)


@pytest.mark.law("K1")
def test_a_row_reads_the_same_before_and_after_its_row_state_is_written(world: World) -> None:
    client = world.client()
    columns = {"z": [1, {"a": None}], "a": True, "m": 1.5, "n": None}
    client.insert("todos", "t0", {"n": 1, "z": 2}).unwrap()
    fold(client)
    client.insert("todos", "t1", columns).unwrap()
    before = client.get("todos", "t1").unwrap(), rows_of(client), states_of(client)
    assert states_written(client) == 1

    fold(client)

    assert states_written(client) == 2
    assert (client.get("todos", "t1").unwrap(), rows_of(client), states_of(client)) == before
    assert before[0] == columns
    assert list(before[0]) == list(client.get("todos", "t1").unwrap() or {})
    assert client.get("todos", "t2").unwrap() is None


STEPS = ("insert", "update", "delete", "both", "discard", "push", "pull", "theirs", "reopen")
columns = st.dictionaries(st.sampled_from("abc"), st.sampled_from([None, 1, "x", True]), min_size=1)
lives = st.lists(
    st.tuples(st.sampled_from(("insert", *STEPS)), st.sampled_from(["r1", "r2"]), columns),
    min_size=8,
    max_size=16,
)


@pytest.mark.law("K1")
@pytest.mark.law("K6")
@given(lives, st.sampled_from([3, UNFOLDED_EDITS_MAX]))
def test_the_time_at_which_row_states_are_written_does_not_affect_results(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, Any]], limit: int
) -> None:
    at_once, later = (
        _lived(tmp_path_factory.mktemp("world"), steps, limit, then=then)
        for then in (fold, check_sound)
    )

    assert later == at_once


@pytest.mark.law("K1")
@pytest.mark.parametrize("step", STEPS)
def test_any_operation_after_an_unfolded_insert_sees_the_row(
    tmp_path_factory: pytest.TempPathFactory, step: str
) -> None:
    steps: list[tuple[str, str, Any]] = [
        *(("insert", "r1", {"a": 1, "b": "x"}), (step, "r1", {"a": None, "c": True})),
        *(("insert", "r2", {"b": "y"}), ("push", "", {}), ("pull", "", {})),
    ]
    at_once, later = (
        _lived(tmp_path_factory.mktemp("world"), steps, UNFOLDED_EDITS_MAX, then=then)
        for then in (fold, check_sound)
    )

    assert later == at_once


def _lived(
    folder: pathlib.Path,
    steps: list[tuple[str, str, Any]],
    limit: int,
    *,
    then: Callable[[Client], None],
) -> list[object]:
    """Return what a client shows after each step, with something done behind each."""
    world, seen = World(folder), list[object]()
    client, other = world.client("a"), world.client("b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LIMIT, limit)
        for step, row_id, columns in steps:
            world.clock.ms += 7
            if step == "reopen":
                client.close()
                client = world.client("a")
            else:
                _do(step, client, other, row_id, columns)
            then(client)
            seen.append((rows_of(client), states_of(client), client.pending().unwrap()))
    check_sound(client)
    world.close()
    return seen


def _do(step: str, client: Client, other: Client, row_id: str, columns: dict[str, object]) -> None:
    match step:
        case "insert" | "update":
            getattr(client, step)("todos", row_id, columns).unwrap()
        case "delete":
            client.delete("todos", row_id).unwrap()
        case "both":
            with client.transaction() as tx:
                tx.insert("todos", row_id, columns).unwrap()
                tx.insert("notes", row_id, columns).unwrap()
        case "discard":
            for entry in client.pending().unwrap()[:1]:
                client.discard(entry.delta.delta_id).unwrap()
        case "push" | "pull":
            getattr(client, step)().unwrap()
        case "theirs":
            other.insert("todos", row_id, columns).unwrap()
            other.sync().unwrap()


@pytest.mark.law("K2")
def test_unfolded_edits_of_another_process_are_taken_into_account(world: World) -> None:
    """Two connections of one client stand for two processes that share its file."""
    first, second = world.client("a"), world.client("a")
    first.insert("todos", "t1", {"title": "first", "n": 1}).unwrap()

    assert second.get("todos", "t1").unwrap() == {"title": "first", "n": 1}
    second.insert("todos", "t1", {"title": "second"}).unwrap()
    second.insert("todos", "t2", {"title": "second"}).unwrap()
    first.update("todos", "t2", {"n": 2}).unwrap()
    first.insert("todos", "t3", {"n": 3}).unwrap()
    second.delete("todos", "t3").unwrap()

    check_sound(first)
    assert (
        rows_of(first)
        == rows_of(second)
        == {
            ("todos", "t1"): {"title": "second", "n": 1},
            ("todos", "t2"): {"title": "second", "n": 2},
        }
    )
    second.sync().unwrap()
    assert rows_of(first) == world.rows()


@pytest.mark.law("K2")
def test_an_insert_that_is_rolled_back_leaves_no_row_state(world: World) -> None:
    class Failing(HookedConnection):
        failing = ""

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if self.failing and sql.startswith(self.failing):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *arguments)

    client = world.client(connection_class=Failing)
    client.insert("todos", "t0", {"n": 0}).unwrap()
    for number, failing in enumerate(("INSERT INTO _lakesync_outbox", "COMMIT"), 1):
        Failing.failing = failing
        assert isinstance(client.insert("todos", f"t{number}", {"n": number}), Err)
        Failing.failing = ""

    assert isinstance(client.insert("todos", "t3", {"n": 3}), Ok)
    fold(client)

    check_sound(client)
    assert states_written(client) == 2
    assert rows_of(client).keys() == {("todos", "t0"), ("todos", "t3")}


def test_the_number_of_unfolded_edits_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, 8)
    client = world.client()
    for number in range(30):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()
        assert number - 8 < states_written(client) <= number + 1
    client.insert_many("todos", {f"m{number}": {"n": number} for number in range(30)}).unwrap()
    for number in range(5):
        client.update("todos", "t1", {"n": number}).unwrap()

    looked_through = client.query(
        "SELECT hlc FROM _lakesync_outbox WHERE hlc > (SELECT folded FROM _lakesync_sync)"
    ).unwrap()

    assert len(looked_through) < 8
    check_sound(client)


@pytest.mark.law("K10")
def test_unfolded_edits_with_stamps_below_the_folded_mark_are_found_after_restamping(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind edits that are stamped again, new ones may be stamped below what was folded."""
    monkeypatch.setattr(LIMIT, 2)
    client, ahead_ms = world.client(), DRIFT_MS_MAX + 60_000
    wrong = world.client("b", wall_clock=lambda: world.clock.ms + ahead_ms)
    for number in range(4):
        wrong.insert("todos", f"t{number}", {"n": number}).unwrap()
    (before,) = wrong.query("SELECT folded FROM _lakesync_sync").unwrap()
    wrong.sync().unwrap()
    delta = wrong.insert("todos", "t9", {"n": 9}).unwrap()

    assert delta.hlc < before["folded"]
    check_sound(wrong)
    wrong.sync().unwrap()
    client.sync().unwrap()
    assert rows_of(wrong) == rows_of(client) == world.rows()


@pytest.mark.law("K2")
def test_a_file_with_unfolded_edits_keeps_its_rows_when_reopened(world: World) -> None:
    client = world.client()
    for number in range(3):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()
    rows = rows_of(client)
    client.close()
    with closing(sqlite3.connect(world.folder / "a.db")) as connection:
        assert connection.execute("SELECT count(*) FROM _lakesync_rows").fetchone() == (0,)

    again = world.client()

    assert rows_of(again) == rows
    check_sound(again)
    again.update("todos", "t1", {"n": 7}).unwrap()
    check_sound(again)
    assert states_written(again) == 3
    again.sync().unwrap()
    assert rows_of(again) == world.rows()
