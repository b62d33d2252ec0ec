"""What data and disks can do to a file: every operation answers, and the outbox can be saved."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client, salvage
from lakesync.errors import ActionFailed, Conflict, FileCorrupt, LakeSyncError
from lakesync.result import Err, Ok
from tests.client.support.acting import Shop
from tests.client.support.world import check_sound, reopened, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.client.support.world import World

OPERATIONS: dict[str, Callable[[Client], Any]] = {
    "insert": lambda client: client.insert("todos", "t1", {"title": "again"}),
    "update": lambda client: client.update("todos", "t50", {"title": "again", "new": [1]}),
    "delete": lambda client: client.delete("todos", "t9"),
    "get": lambda client: [client.get("todos", f"t{place}") for place in range(60)],
    "query": lambda client: client.query("SELECT * FROM todos"),
    "declare": lambda client: client.declare("todos", {"title": "string"}, indexes=[["title"]]),
    "schema": lambda client: client.schema("todos"),
    "sql_name": lambda client: client.sql_name("todos", "title"),
    "pending": lambda client: client.pending(),
    "quarantined": lambda client: client.quarantined(),
    "retry": lambda client: client.retry("0" * 64),
    "discard": lambda client: client.discard("0" * 64),
    "push": lambda client: client.push(),
    "pull": lambda client: client.pull(),
    "sync": lambda client: client.sync(),
    "run an action": lambda client: client.actions.run("shipping", "ship", {"order": 1}),
    "pending actions": lambda client: client.actions.pending(),
    "dead letters": lambda client: client.actions.dead_letters(),
    "retry an action": lambda client: client.actions.retry("0" * 48),
    "discard an action": lambda client: client.actions.discard("0" * 48),
    "find an action": lambda client: client.actions.find("0" * 48),
    "send": lambda client: client.actions.send(),
}


def all_answer(client: Client) -> set[str]:
    """Ask everything of a client; returns the codes of what it answered."""
    codes: set[str] = set()
    for operation in OPERATIONS.values():
        given = operation(client)
        for result in given if isinstance(given, list) else [given]:
            assert isinstance(result, Ok | Err)
            codes |= {result.error.code} if isinstance(result, Err) else set()
    return codes


def full(world: World) -> list[str]:
    """Make a client with rows that are synced, and edits that wait; returns the ids of those."""
    client = world.client()
    for place in range(60):
        client.insert("todos", f"t{place}", {"title": f"title {place}" * 10}).unwrap()
    client.sync().unwrap()
    waiting = [
        client.update("todos", f"t{place}", {"done": "x" * 300}).unwrap().delta_id
        for place in range(60)
    ]
    for place in range(20):
        client.actions.run("shipping", "ship", {"order": place, "to": "x" * 300}).unwrap()
    client.close()
    return waiting


def damaged(path: Path, seed: int) -> None:
    """Write over some bytes of a file, anywhere behind its first page."""
    dice = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 3, 30])):
        start = dice.randrange(4_096, len(content))
        for place in range(start, min(len(content), start + dice.choice([1, 4, 64]))):
            content[place] = dice.randrange(256)
    if dice.random() < 0.2:
        content = content[: dice.randrange(4_096, len(content))]
    path.write_bytes(bytes(content))


@pytest.mark.law("K20")
@pytest.mark.parametrize("seed", range(60))
def test_every_operation_on_a_damaged_file_answers_with_a_known_error(
    world: World, seed: int
) -> None:
    full(world)
    damaged(world.folder / "a.db", seed)
    try:
        client = world.client()
    except (FileCorrupt, Conflict):
        return
    known = {"CORRUPT", "NOT_FOUND", "INTERNAL_ERROR", "VALIDATION_ERROR", "UNAVAILABLE"}
    assert all_answer(client) <= known


@pytest.mark.law("K20")
def test_a_file_with_a_damaged_sqlite_schema_is_reported_corrupt_and_its_edits_are_salvaged(
    world: World,
) -> None:
    waiting = full(world)
    path = world.folder / "a.db"
    content = path.read_bytes()
    assert b"forms INTEGER" in content
    path.write_bytes(content.replace(b"forms INTEGER", b"formx INTEGER"))

    with pytest.raises(FileCorrupt, match="salvage"):
        world.client()
    saved = salvage(path).unwrap()
    assert [entry.delta.delta_id for entry in saved.edits] == waiting


def _page_broken(path: Path, holds: str) -> None:
    """Destroy the page that holds some text."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    start = content.index(holds.encode()) // size * size
    content[start : start + size] = b"\xff" * size
    path.write_bytes(bytes(content))


@pytest.mark.law("K20")
def test_salvage_keeps_the_outbox_of_a_damaged_file_and_the_client_syncs_afterwards(
    world: World,
) -> None:
    waiting = full(world)
    path = world.folder / "a.db"
    # The root of the rows: nothing can be edited, and none of the outbox is touched.
    with closing(sqlite3.connect(path)) as file:
        (root,) = file.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = '_lakesync_rows'"
        ).fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(bytes(content))
    client = world.client()
    result = client.insert("todos", "t1", {"title": "x"})
    assert isinstance(result, Err)
    assert result.error.code == "CORRUPT"
    assert "salvage" in str(result.error)
    client.close()

    saved = salvage(path).unwrap()

    assert [entry.delta.delta_id for entry in saved.edits] == waiting
    assert saved.is_complete
    assert saved.kept.read_bytes() == bytes(content)
    client = world.client()
    assert [entry.delta.delta_id for entry in client.pending().unwrap()] == waiting
    check_sound(client)
    client.sync()  # nobody runs actions here
    assert client.pending() == Ok([])
    assert rows_of(client) == world.rows()
    assert len(world.deltas()) == 2 * len(waiting)


@pytest.mark.law("K20")
def test_salvage_keeps_edits_over_the_size_limit_of_a_later_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = full(world)
    monkeypatch.setattr("lakesync.core.delta.DELTA_BYTES_MAX", 1)

    saved = salvage(world.folder / "a.db").unwrap()

    assert saved.is_complete
    assert [entry.delta.delta_id for entry in saved.edits] == waiting


@pytest.mark.law("K20")
def test_salvage_of_a_damaged_outbox_saves_part_of_its_edits_in_order(world: World) -> None:
    waiting = full(world)
    path = world.folder / "a.db"
    _page_broken(path, waiting[30])

    saved = salvage(path).unwrap()

    ids = [entry.delta.delta_id for entry in saved.edits]
    assert not saved.is_complete
    assert 0 < len(ids) < len(waiting)
    assert ids == [one for one in waiting if one in ids]
    client = world.client()
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


@pytest.mark.law("X14")
def test_salvage_keeps_queued_done_and_dead_actions_unchanged(world: World) -> None:
    shop = Shop(world)
    client = world.client(transport=shop.transport())
    shop.fails.append(ActionFailed("no"))
    dead, done = (client.actions.run("shipping", "ship", {"order": n}).unwrap() for n in (1, 2))
    client.sync().unwrap()
    client.insert("todos", "t1", {}).unwrap()
    client.actions.run("shipping", "ship", {"order": 3}).unwrap()
    before = client.query("SELECT * FROM _lakesync_actions").unwrap()
    client.close()

    saved = salvage(world.folder / "a.db").unwrap()

    assert [entry.params["order"] for entry in saved.actions] == [1, 2, 3]
    assert saved.is_complete
    client = world.client(transport=shop.transport())
    assert client.query("SELECT * FROM _lakesync_actions").unwrap() == before
    client.sync().unwrap()
    assert shop.orders == [2, 3]
    assert client.actions.find(done.action_id).unwrap().result(0) == Ok({"shipment": 1})
    assert [entry.action_id for entry in client.actions.dead_letters().unwrap()] == [dead.action_id]


@pytest.mark.law("X14")
def test_salvage_makes_actions_whose_edits_may_be_lost_dead_letters(world: World) -> None:
    waiting = full(world)
    path = world.folder / "a.db"
    _page_broken(path, waiting[30])

    saved = salvage(path).unwrap()

    shop = Shop(world)
    client = world.client(transport=shop.transport())
    assert {entry.code for entry in client.actions.dead_letters().unwrap()} == {"EDIT_REFUSED"}
    assert len(saved.actions) == 20
    client.sync().unwrap()
    assert shop.orders == []


@pytest.mark.law("K20")
@pytest.mark.parametrize(
    "damage", ["params = '{'", "queued_ms = 'x'", "status = 'gone'", "queued_ms = 1 << 62"]
)
def test_operations_on_a_damaged_action_are_corrupt_errors(world: World, damage: str) -> None:
    client = world.client()
    queued = client.actions.run("shipping", "ship", {"order": 1}).unwrap()
    with client._file.database.transaction() as connection:
        connection.execute(f"UPDATE _lakesync_actions SET {damage}")  # noqa: S608 - a test's own
    for result in (
        queued.entry(),
        queued.result(1),
        client.actions.find(queued.action_id),
        client.actions.pending(),
        client.actions.dead_letters(),
        client.actions.discard(queued.action_id),
    ):
        assert result == Ok([]) or (isinstance(result, Err) and result.error.code == "CORRUPT")
    assert not salvage_closed(client).unwrap().is_complete


def salvage_closed(client: Client) -> Any:
    client.close()
    return salvage(client._path)


@pytest.mark.law("X14")
def test_an_action_altered_in_the_file_is_never_sent(world: World) -> None:
    shop = Shop(world)
    client = world.client(transport=shop.transport())
    client.actions.run("shipping", "ship", {"order": 1, "to": "Ada"}).unwrap()
    client.close()
    path = world.folder / "a.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE _lakesync_actions SET params = replace(params, 'Ada', 'Ida')")

    client = world.client(transport=shop.transport())
    result = client.sync()

    assert isinstance(result, Err)
    assert result.error.code == "CORRUPT"
    client.close()
    assert not salvage(path).unwrap().is_complete
    client = world.client(transport=shop.transport())
    client.sync().unwrap()
    assert shop.orders == []


@pytest.mark.law("K20")
def test_salvage_keeps_edits_that_are_only_in_the_write_ahead_log(world: World) -> None:
    client = world.client()
    waiting = [client.insert("todos", f"t{n}", {"n": n}).unwrap().delta_id for n in range(5)]
    path, copy = world.folder / "a.db", world.folder / "copy.db"
    for ending in ("", "-wal"):
        shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")

    saved = salvage(copy).unwrap()

    assert [entry.delta.delta_id for entry in saved.edits] == waiting


@pytest.mark.law("K20")
def test_salvage_keeps_the_stamps_transactions_and_statuses_of_the_outbox(world: World) -> None:
    client = world.client()
    with client.transaction() as tx:
        tx.insert("todos", "t1", {"n": 1}).unwrap()
        tx.insert("todos", "t2", {"n": 2}).unwrap()
    groups = client.query("SELECT hlc, txn, status FROM _lakesync_outbox").unwrap()
    before = client.pending().unwrap()
    client.close()

    salvage(world.folder / "a.db").unwrap()

    client = world.client()
    assert client.query("SELECT hlc, txn, status FROM _lakesync_outbox").unwrap() == groups
    assert client.pending().unwrap() == before
    later = client.insert("todos", "t3", {"n": 3}).unwrap()
    assert later.hlc > max(entry.delta.hlc for entry in before)


@pytest.mark.law("K20")
def test_salvage_of_an_unreadable_file_saves_nothing_and_a_new_file_can_be_opened(
    world: World,
) -> None:
    path = world.folder / "a.db"
    path.write_bytes(b"\xff" * 10_000)
    with pytest.raises(FileCorrupt):
        world.client()

    saved = salvage(path).unwrap()

    assert saved.edits == ()
    assert not saved.is_complete
    assert saved.kept.read_bytes() == b"\xff" * 10_000
    world.client().insert("todos", "t1", {"n": 1}).unwrap()


def test_salvaging_twice_keeps_a_copy_of_the_file_each_time(world: World) -> None:
    full(world)
    first = salvage(world.folder / "a.db").unwrap()
    second = salvage(world.folder / "a.db").unwrap()

    assert first.kept != second.kept
    assert first.edits
    assert [e.delta for e in first.edits] == [e.delta for e in second.edits]


def test_salvage_of_a_missing_file_is_not_found_and_creates_none(world: World) -> None:
    result = salvage(world.folder / "none.db")

    assert isinstance(result, Err)
    assert result.error.code == "NOT_FOUND"
    assert not (world.folder / "none.db").exists()


_TRIGGER = (
    "CREATE TRIGGER own BEFORE INSERT ON todos WHEN new.title = 'x' "
    "BEGIN SELECT RAISE({}, 'no x'); END"
)
OWN = [
    "CREATE UNIQUE INDEX own ON todos (title)",
    *(_TRIGGER.format(how) for how in ("ABORT", "ROLLBACK", "FAIL")),
]


@pytest.mark.law("K20")
@pytest.mark.parametrize("own", OWN)
def test_an_index_or_trigger_of_the_app_may_refuse_an_edit_or_a_page_and_nothing_is_written(
    world: World, own: str
) -> None:
    other = world.client("b")
    client = world.client()
    client.insert("todos", "t1", {"title": "a"}).unwrap()
    client.sync().unwrap()
    with closing(sqlite3.connect(world.folder / "a.db")) as file, file:
        file.execute(own)
        if "UNIQUE" in own:
            file.execute("UPDATE todos SET title = 'x'")
    refused = client.insert("todos", "t2", {"title": "x"})
    other.insert("todos", "t3", {"title": "x"}).unwrap()
    other.push().unwrap()
    pulled = client.pull()

    for result in (refused, pulled):
        assert isinstance(result, Err)
        assert result.error.code == "VALIDATION_ERROR"
        assert "the app's own" in str(result.error)
    assert client.pending() == Ok([])
    with pytest.raises(LakeSyncError, match="the app's own"), client.transaction() as tx:
        tx.insert("todos", "t2", {"title": "x"})
    with closing(sqlite3.connect(world.folder / "a.db")) as file, file:
        file.execute("DROP INDEX own" if "INDEX" in own else "DROP TRIGGER own")
    client.sync().unwrap()
    assert set(rows_of(client)) == {("todos", "t1"), ("todos", "t3")}


def test_a_broken_trigger_of_the_app_is_an_err(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": "a"}).unwrap()
    with closing(sqlite3.connect(world.folder / "a.db")) as file, file:
        file.execute("CREATE TRIGGER own AFTER INSERT ON todos BEGIN DELETE FROM nowhere; END")

    result = client.insert("todos", "t2", {"title": "b"})
    assert isinstance(result, Err)
    assert "nowhere" in str(result.error)
    assert len(client.pending().unwrap()) == 1


WRONG: list[Callable[[Any], Any]] = [
    lambda client: client.get("todos", "\ud800"),
    lambda client: client.get("todos", 7),
    lambda client: client.get(7, "t1"),
    lambda client: client.get("\ud800", "t1"),
    lambda client: client.get("todos", b"t1"),
    lambda client: client.declare(7, {}),
    lambda client: client.declare("t", 7),
    lambda client: client.declare("t", ["title"]),
    lambda client: client.declare("t", {"title": 7}),
    lambda client: client.declare("t", {7: "string"}),
    lambda client: client.declare("t", {"title": ["string"]}),
    lambda client: client.declare("t", {"\ud800": "string"}),
    lambda client: client.declare("t", {"title": "string"}, indexes=7),
    lambda client: client.declare("t", {"title": "string"}, indexes="title"),
    lambda client: client.declare("t", {"title": "string"}, indexes=["title"]),
    lambda client: client.declare("t", {"title": "string"}, indexes=[7]),
    lambda client: client.declare("t", {"title": "string"}, indexes=[[["title"]]]),
    lambda client: client.sql_name(7),
    lambda client: client.sql_name("\ud800"),
    lambda client: client.sql_name("t", 7),
]


@pytest.mark.law("K20")
@pytest.mark.parametrize("operation", WRONG)
def test_an_argument_of_the_wrong_type_is_an_err(
    world: World, operation: Callable[[Any], Any]
) -> None:
    result = operation(world.client())

    assert isinstance(result, Err)
    assert result.error.code in {"VALIDATION_ERROR", "SCHEMA_ERROR"}
    assert world.client().insert("t", "r", {"title": "x"}).unwrap()


def test_every_operation_of_a_closed_client_is_a_validation_error(world: World) -> None:
    client = world.client()
    client.close()

    assert all_answer(client) == {"VALIDATION_ERROR"}
    with pytest.raises(LakeSyncError, match="is closed"), client.transaction():
        pass


@pytest.mark.parametrize("path", ["a\0.db", "\ud800/\0"])
def test_an_impossible_path_is_refused(world: World, path: str) -> None:
    with pytest.raises(LakeSyncError, match="is not a path"):
        Client(path, client_id="a", transport=world.transport())


@pytest.mark.parametrize(
    "options",
    [{"durability": "OFF"}, {"durability": "bogus"}, {"durability": 2}]
    + [{"page_deltas": count} for count in (0, -1, 10_001)],
)
def test_an_invalid_durability_or_page_size_is_refused(
    world: World, options: dict[str, Any]
) -> None:
    with pytest.raises(LakeSyncError) as raised:
        world.client(**options)
    assert raised.value.code == "VALIDATION_ERROR"
    assert raised.value.field in options
    assert "durability" not in options or not (world.folder / "a.db").exists()


def test_an_unexpected_exception_is_raised_and_not_reported_as_damage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client()
    client.insert("t", "r", {"c": 1}).unwrap()

    def buggy(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("lakesync.client.client.record", buggy)
    with pytest.raises(KeyError, match="a bug"):
        client.insert("t", "r", {"c": 2})


def test_a_reopened_client_shows_its_rows(world: World) -> None:
    client = world.client()
    client.insert("t", "r", {"c": 1}).unwrap()
    assert rows_of(reopened(world, client)) == {("t", "r"): {"c": 1}}
