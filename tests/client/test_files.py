"""Files: migrations, ownership, and what a disk can do to an edit."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client
from lakesync.client.storage import file_layout
from lakesync.client.storage.file_layout import TABLES, claim
from lakesync.client.storage.sqlite_file import COMMITS_BEFORE, LOG_PAGES_MAX
from lakesync.errors import Conflict, FileCorrupt, Unavailable, ValidationFailed
from lakesync.result import Err, Ok
from tests.client.support.world import check_sound, rows_of
from tests.support.hooked_connection import HookedConnection

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.support.world import World


def test_a_file_of_an_unknown_layout_is_refused(world: World) -> None:
    world.client().close()
    with closing(sqlite3.connect(world.folder / "a.db")) as connection, connection:
        connection.execute("UPDATE _lakesync_sync SET layout = 99")

    with pytest.raises(Conflict, match="another release"):
        world.client()


def test_the_tables_of_a_new_file_are_created_all_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_layout, "TABLES", (*TABLES, "CREATE TABLE no sense"))
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            claim(connection, "a")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_a_file_of_another_client_id_is_refused(world: World) -> None:
    world.client("a").close()
    (world.folder / "a.db").rename(world.folder / "b.db")

    with pytest.raises(Conflict, match="belongs to the client 'a'"):
        world.client("b")


def test_a_client_with_an_empty_path_is_refused(world: World) -> None:
    with pytest.raises(ValidationFailed, match="a client needs the path of a file, or :memory:"):
        Client("", client_id="a", transport=world.transport())


def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(world: World) -> None:
    path = world.folder / "a.db"
    path.write_bytes(b"something else entirely, and long enough to be looked at" * 100)

    with pytest.raises(FileCorrupt, match="salvage"):
        world.client()
    assert path.read_bytes().startswith(b"something else")


def test_a_client_file_in_a_missing_folder_cannot_be_opened(world: World) -> None:
    with pytest.raises(Unavailable, match="cannot be opened"):
        Client(world.folder / "no" / "a.db", client_id="a", transport=world.transport())


def test_an_empty_client_id_is_refused(world: World) -> None:
    with pytest.raises(ValidationFailed):
        Client(world.folder / "a.db", client_id="", transport=world.transport())


def test_an_existing_database_of_the_app_keeps_its_tables_beside_synced_ones(world: World) -> None:
    path = world.folder / "a.db"
    with closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE settings (key TEXT, value TEXT)")
        own.execute("INSERT INTO settings VALUES ('theme', 'dark')")
        own.commit()

    client = world.client()
    other = world.client("b")
    other.insert("settings", "s1", {"key": "synced"}).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()

    assert client.query("SELECT * FROM settings").unwrap() == [{"key": "theme", "value": "dark"}]
    sql_name = client.sql_name("settings").unwrap()
    assert client.query(f"SELECT key FROM {sql_name}").unwrap() == [  # noqa: S608 - our own name
        {"key": "synced"}
    ]


class _FullDisk(HookedConnection):
    """Fails as SQLite does when asked to."""

    failing = ""

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        """Execute, or fail."""
        if _FullDisk.failing and sql.startswith(_FullDisk.failing):
            if self.in_transaction:
                super().execute("ROLLBACK")  # as SQLite itself may do
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *rest)


def _edit_two(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.transaction() as edits:
        if isinstance(edits.insert("todos", "t3", {"title": "x"}), Err):
            monkeypatch.setattr(_FullDisk, "failing", "")
        # SQLite rolled back by itself: this edit must not be committed by itself either.
        edits.insert("todos", "t4", {"title": "x"})


@pytest.mark.law("K1")
@pytest.mark.parametrize(
    "statement", ["BEGIN", "INSERT INTO _lakesync_outbox", 'INSERT INTO "todos"', "COMMIT"]
)
def test_an_edit_on_a_full_disk_is_an_err_and_writes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    client = world.client(connection_class=_FullDisk)
    client.insert("todos", "t1", {"title": "before"}).unwrap()
    monkeypatch.setattr(_FullDisk, "failing", statement)

    result = client.insert("todos", "t2", {"title": "x", "new": 1})
    with pytest.raises(Unavailable, match="disk is full"):
        _edit_two(client, monkeypatch)

    assert isinstance(result, Err)
    assert result.error.code == "UNAVAILABLE"
    monkeypatch.setattr(_FullDisk, "failing", "")
    assert client.query("SELECT _row_id FROM todos").unwrap() == [{"_row_id": "t1"}]
    client.insert("todos", "t5", {"title": "x", "new": 1}).unwrap()
    assert len(client.pending().unwrap()) == 2
    check_sound(client)


@pytest.mark.law("K20")
def test_after_a_full_disk_the_write_ahead_log_does_not_grow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has many versions of each page, and would soon take again all that was freed."""
    client = world.client(connection_class=_FullDisk)
    path, log = world.folder / "a.db", world.folder / "a.db-wal"
    for turn in range(50):
        client.insert("todos", "t1", {"title": f"{turn}"}).unwrap()
    monkeypatch.setattr(_FullDisk, "failing", "COMMIT")
    assert isinstance(client.insert("todos", "t2", {"title": "x"}), Err)
    monkeypatch.setattr(_FullDisk, "failing", "")
    grown, folded = log.stat().st_size, path.stat().st_size

    for turn in range(20):
        client.insert("todos", "t3", {"title": f"{turn}"}).unwrap()

    assert path.stat().st_size > folded
    assert log.stat().st_size == grown


def test_frequent_durable_commits_find_the_write_ahead_log_enlarged_in_advance(
    world: World,
) -> None:
    """A commit that makes the log's file longer costs twice as much as one that does not."""
    client, relaxed = world.client(durability="FULL"), world.client("relaxed")
    path, log = world.folder / "a.db", world.folder / "a.db-wal"
    for turn in range(COMMITS_BEFORE):
        client.insert("todos", f"t{turn}", {"title": f"{turn}"}).unwrap()
        relaxed.insert("todos", f"t{turn}", {"title": f"{turn}"}).unwrap()
    roomy, folded = log.stat().st_size, path.stat().st_size
    for turn in range(COMMITS_BEFORE):
        client.update("todos", f"t{turn}", {"title": "again"}).unwrap()

    assert roomy > LOG_PAGES_MAX * 4096 * 0.9
    assert (log.stat().st_size, path.stat().st_size) == (roomy, folded)
    assert (world.folder / "relaxed.db-wal").stat().st_size < roomy / 2
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


def test_edits_succeed_on_a_disk_without_room_to_enlarge_the_log_in_advance(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.client(connection_class=_FullDisk, durability="FULL")
    monkeypatch.setattr(_FullDisk, "failing", "UPDATE _lakesync_sync SET snapshot = zeroblob")
    for turn in range(COMMITS_BEFORE + 1):
        client.insert("todos", f"t{turn}", {"title": f"{turn}"}).unwrap()

    assert (world.folder / "a.db-wal").stat().st_size < LOG_PAGES_MAX * 4096 / 2
    assert client._file.connection.execute("PRAGMA cache_size").fetchone() == (-2000,)
    check_sound(client)


def test_an_edit_of_a_file_locked_by_another_process_is_unavailable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.client.storage.sqlite_file.BUSY_TIMEOUT_S", 0.05)
    client = world.client()
    with closing(sqlite3.connect(world.folder / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        result = client.insert("todos", "t1", {"title": "x"})
        other.execute("ROLLBACK")

    assert isinstance(result, Err)
    assert result.error.code == "UNAVAILABLE"
    assert "another process" in result.error.message
    assert isinstance(client.insert("todos", "t1", {"title": "x"}), Ok)


@pytest.mark.parametrize(("durability", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_the_durability_option_sets_sqlites_synchronous_mode(
    tmp_path: Path, world: World, durability: Any, number: int
) -> None:
    path = tmp_path / "d.db"
    with Client(path, client_id="d", transport=world.transport(), durability=durability) as client:
        writer = client._file.database.writer
        assert writer.execute("PRAGMA synchronous").fetchone() == (number,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_client_can_be_closed_twice(world: World) -> None:
    client = world.client()
    client.close()
    client.close()
