"""Encrypted files: what is on the disk tells nothing, and only its key opens it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.client import AsyncClient, Client, salvage
from lakesync.client.storage import private_files
from lakesync.client.storage.private_files import KEY_BYTES, PASSPHRASE_BYTES_MAX, Key
from lakesync.errors import FileCorrupt, ValidationFailed, WrongKey
from lakesync.result import Err
from tests.client.support.world import check_sound, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.client.support.world import World

RAW = bytes(range(KEY_BYTES))
OTHER = bytes(reversed(RAW))
SECRET = "the secret of this row"
KEYS = [RAW, 'a pass\'phrase\0 with \U0001f600 and "quotes"', lambda: RAW]


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.mark.law("K31")
@pytest.mark.parametrize("key", KEYS, ids=["raw", "passphrase", "callable"])
def test_an_encrypted_file_has_no_plaintext_and_opens_again_with_its_key(
    world: World, tmp_path: Path, key: Any
) -> None:
    client = world.client(key=key)
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    client.insert("secret_table", "t2", {"title": SECRET}).unwrap()
    client.execute("CREATE TABLE drafts (x)").unwrap()
    client.execute("INSERT INTO drafts VALUES (?)", (SECRET,)).unwrap()
    client.sync().unwrap()
    with_log = on_disk(tmp_path)
    client.close()
    for written in (with_log, on_disk(tmp_path)):
        assert len(written) > 4_096
        for word in (SECRET, "secret_table", "_lakesync_", "SQLite format 3"):
            assert word.encode() not in written
    again = world.client(key=key)
    check_sound(again)

    assert rows_of(again) == world.rows()
    assert again.query("SELECT x FROM drafts").unwrap() == [{"x": SECRET}]


@pytest.mark.law("K31")
@pytest.mark.parametrize("key", [OTHER, "another", RAW.hex(), ""])
def test_a_wrong_key_is_reported_as_such_and_leaves_the_file_unchanged(
    world: World, key: Any
) -> None:
    client = world.client(key=RAW)
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    client.close()
    before = on_disk(world.folder)
    with pytest.raises((WrongKey, ValidationFailed)) as caught:
        world.client(key=key)
    assert caught.value.field == "key"
    assert on_disk(world.folder) == before
    assert world.client(key=RAW).get("todos", "t1").unwrap() == {"title": SECRET}


@pytest.mark.law("K31")
def test_opening_an_encrypted_file_without_its_key_reports_that_a_key_may_be_needed(
    world: World,
) -> None:
    world.client(key=RAW).close()

    with pytest.raises(FileCorrupt, match="if it is encrypted, open it with its key"):
        world.client()


@pytest.mark.law("K31")
def test_an_unencrypted_file_is_not_opened_with_a_key(world: World) -> None:
    client = world.client()
    client.insert("todos", "t1", {}).unwrap()
    client.close()
    with pytest.raises(WrongKey):
        world.client(key=RAW)

    assert world.client().get("todos", "t1").unwrap() == {}


@pytest.mark.parametrize(
    "key",
    ["", "x" * (PASSPHRASE_BYTES_MAX + 1), "\ud800", b"", b"x" * 31, b"x" * 33, 7, bytearray(RAW),
     lambda: None, lambda: lambda: RAW],
)  # fmt: skip
def test_an_invalid_key_is_refused_and_not_repeated_in_the_message(key: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        Key(key)
    assert caught.value.field == "key"
    assert "xxx" not in str(caught.value)


@given(passphrase=st.text(min_size=1, max_size=40).filter(str.isprintable))
@settings(max_examples=200)
def test_a_passphrase_enters_the_key_pragma_only_as_hexadecimal(passphrase: str) -> None:
    pragma = Key(passphrase)._pragma

    assert pragma == f"PRAGMA hexkey = '{passphrase.encode().hex()}'"
    assert set(pragma.partition("= ")[2]) <= set("'0123456789abcdef")


@pytest.mark.law("K31")
def test_a_key_appears_in_no_log_error_or_repr(
    world: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    client = world.client(key=RAW)
    shown = repr(vars(client)) + repr(vars(client._file)) + repr(vars(client._file.database))
    client.query("SELECT nonsense FROM nowhere")
    client.close()
    with pytest.raises(WrongKey) as caught:
        world.client(key=OTHER)
    written = "".join(capfd.readouterr())
    shown += caplog.text + written + repr(caught.value) + repr(Key(RAW)) + str(caught.value)

    for key in (RAW, OTHER):
        assert key.hex() not in shown.lower()
        assert repr(key) not in shown
    assert written == "", "SQLCipher's own log says nothing that the error does not"


@pytest.mark.law("K31")
def test_encrypted_clients_edit_sync_watch_and_quarantine_as_any_client(both: World) -> None:
    both.gateway.only_text_in("strict")
    mine, others = both.client("a", key=RAW), both.client("b", key="a passphrase")
    with mine.transaction() as tx:
        tx.insert("todos", "t1", {"n": 1})
        tx.insert("todos", "t2", {"n": 2})
    mine.insert("strict", "bad", {"title": 3}).unwrap()
    mine.execute("UPDATE todos SET n = 5 WHERE _row_id = ?", ("t2",)).unwrap()
    mine.sync().unwrap()
    others.sync().unwrap()
    others.delete("todos", "t1").unwrap()
    others.sync().unwrap()
    watch = mine.watch("SELECT n FROM todos ORDER BY n")
    assert next(watch) == [{"n": 1}, {"n": 5}]
    mine.sync().unwrap()
    assert next(watch) == [{"n": 5}]
    watch.close()

    assert [entry.delta.row_id for entry in mine.quarantined().unwrap()] == ["bad"]
    assert rows_of(others) == {("todos", "t2"): {"n": 5}}
    for client in (mine, others):
        check_sound(client)


@pytest.mark.law("K31")
def test_an_encrypted_client_reports_the_same_errors_as_an_unencrypted_one(world: World) -> None:
    client = world.client(key=RAW)
    client.insert("todos", "t1", {"n": 1}).unwrap()
    plain = world.client("plain")
    plain.insert("todos", "t1", {"n": 1}).unwrap()
    asked: list[Callable[[Client], Any]] = [
        lambda one: one.query("SELEC"),
        lambda one: one.query("SELECT * FROM nowhere"),
        lambda one: one.query("DELETE FROM todos"),
        lambda one: one.query("SELECT 1; SELECT 2"),
        lambda one: one.query("SELECT ?", ()),
        lambda one: one.execute("INSERT INTO todos (_row_id, n) VALUES ('t1', 2)"),
        lambda one: one.execute("UPDATE todos SET nothing = 1"),
    ]
    for ask in asked:
        ours, theirs = ask(client), ask(plain)
        assert isinstance(ours, Err)
        assert isinstance(theirs, Err)
        assert (type(ours.error), ours.error.field) == (type(theirs.error), theirs.error.field)
        assert isinstance(ours.error.__cause__, sqlite3.Error | sqlite3.Warning | None)
    client.close()
    for use in (
        lambda: client.query("SELECT 1"),
        lambda: client.insert("todos", "t2", {}),
        lambda: client.execute("UPDATE todos SET n = 1"),
        client.sync,
    ):
        closed: Any = use()
        assert isinstance(closed, Err)
        assert "the client is closed" in closed.error.message


@pytest.mark.law("K31", "K26")
def test_a_wipe_removes_an_encrypted_file_and_the_next_may_have_another_key(
    world: World, tmp_path: Path
) -> None:
    client = world.client(key=RAW)
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    client.sync().unwrap()
    client.wipe().unwrap()
    assert list(tmp_path.iterdir()) == []
    again = world.client(key=OTHER)
    again.sync().unwrap()
    assert again.get("todos", "t1").unwrap() == {"title": SECRET}


@pytest.mark.law("K31")
def test_an_encrypted_file_is_salvaged_with_its_key_and_stays_encrypted(
    world: World, tmp_path: Path
) -> None:
    client = world.client(key=RAW)
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    client.close()
    path = tmp_path / "a.db"
    wrong = salvage(path, key=OTHER)
    assert isinstance(wrong, Err)
    assert isinstance(wrong.error, WrongKey)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.db"]
    saved = salvage(path, key=RAW).unwrap()
    assert [entry.delta.row_id for entry in saved.edits] == ["t1"]
    assert SECRET.encode() not in on_disk(tmp_path)
    assert world.client(key=RAW).get("todos", "t1").unwrap() == {"title": SECRET}


def test_without_sqlcipher_a_key_is_refused_with_an_install_command(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlcipher3", None)
    private_files._sqlcipher.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"needs SQLCipher: run pip install .*encryption"):
            world.client(key=RAW)
    finally:
        private_files._sqlcipher.cache_clear()
    assert not (world.folder / "a.db").exists()
    world.client()


def test_an_async_client_opens_an_encrypted_file_only_with_its_key(
    world: World, tmp_path: Path
) -> None:
    async def edit(key: Any) -> object:
        transport = world.transport()
        async with AsyncClient(
            tmp_path / "a.db", client_id="a", transport=transport, key=key
        ) as client:
            (await client.upsert("todos", "t1", {"title": SECRET})).unwrap()
            return (await client.query("SELECT title FROM todos")).unwrap()

    assert asyncio.run(edit(RAW)) == [{"title": SECRET}]
    with pytest.raises(WrongKey):
        asyncio.run(edit(OTHER))
    with Client(tmp_path / "a.db", client_id="a", transport=world.transport(), key=RAW) as client:
        assert client.get("todos", "t1").unwrap() == {"title": SECRET}
