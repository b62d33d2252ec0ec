"""`wipe`: what was in the file is gone from the disk, or it is said what would be lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.client import client as wipe
from lakesync.errors import Conflict, SchemaMismatch, ValidationFailed
from lakesync.result import Err
from tests.client.support.world import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.support.world import World

SECRET = "the secret of this row"


def on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.law("K26")
def test_a_wipe_leaves_no_file_and_ends_watches_and_the_client(
    world: World, tmp_path: Path
) -> None:
    client = world.client()
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    with client._file.database.transaction() as connection:
        connection.execute("CREATE VIEW shown AS SELECT * FROM todos")
        connection.execute("CREATE TABLE own (x)")
        connection.execute("CREATE TRIGGER t AFTER DELETE ON todos BEGIN DELETE FROM own; END")
    client.sync().unwrap()
    watch = client.watch("SELECT * FROM todos")
    assert next(watch)

    client.wipe().unwrap()

    assert on_disk(tmp_path) == []
    assert list(watch) == []
    assert isinstance(client.query("SELECT 1"), Err)
    again = world.client()
    assert rows_of(again) == {}
    again.sync().unwrap()
    assert again.get("todos", "t1").unwrap() == {"title": SECRET}


@pytest.mark.law("K26")
def test_a_wipe_is_refused_while_edits_wait_and_counts_them(world: World, tmp_path: Path) -> None:
    world.gateway.judge = lambda delta: SchemaMismatch("no") if delta.row_id == "bad" else None
    client = world.client()
    client.insert("todos", "bad", {}).unwrap()
    client.sync().unwrap()
    client.insert("todos", "t1", {}).unwrap()

    result = client.wipe()

    assert isinstance(result, Err)
    assert isinstance(result.error, Conflict)
    assert "1 edit waits for the gateway, 1 edit was refused; this would" in str(result.error)
    assert len(client.pending().unwrap()) == len(client.quarantined().unwrap()) == 1
    client.insert("todos", "t2", {}).unwrap()
    client.wipe(lose_edits=True).unwrap()
    assert on_disk(tmp_path) == []


@pytest.mark.law("K26")
def test_a_wipe_that_crashes_before_removing_the_file_leaves_no_data_in_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: object) -> None:
        raise KeyboardInterrupt

    client = world.client()
    client.insert("todos", "t1", {"title": SECRET}).unwrap()
    client.sync().unwrap()
    with monkeypatch.context() as patch:
        patch.setattr(wipe, "Path", dies)
        with pytest.raises(KeyboardInterrupt):
            client.wipe()
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert SECRET.encode() not in left
    assert b"todos" not in left
    again = world.client()
    again.sync().unwrap()
    assert again.get("todos", "t1").unwrap() == {"title": SECRET}


def test_a_closed_client_is_not_wiped(world: World, tmp_path: Path) -> None:
    client = world.client()
    client.close()
    result = client.wipe()
    assert isinstance(result, Err)
    assert isinstance(result.error, ValidationFailed)
    assert on_disk(tmp_path) == ["a.db"]
