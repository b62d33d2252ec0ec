"""What a client writes to the disk can be read by its owner alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

import pytest

from lakesync.client import salvage
from lakesync.client.storage.attachment_store import Folder
from lakesync.core.attachments import Attachment, Digester
from tests.client.support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")


@pytest.fixture(params=[0o000, 0o022, 0o377])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    before = os.umask(request.param)
    yield tmp_path
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of everything in a folder."""
    return {
        str(path.relative_to(folder)): stat.filemode(path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.law("K31")
@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_a_clients_file_and_the_files_beside_it_are_readable_by_their_owner_alone(
    folder: Path, key: bytes | None
) -> None:
    world = World(folder)
    client = world.client(key=key)
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    if key is None:
        client.attachments.add(b"secret").unwrap()
    there = modes(folder)
    assert {"a.db", "a.db-wal", "a.db-shm"} <= there.keys()
    assert set(there.values()) <= {"-rw-------", "drwx------"}
    client.close()

    salvage(folder / "a.db", key=key).unwrap()

    there = modes(folder)
    assert "a.db.corrupt-1" in there
    assert set(there.values()) <= {"-rw-------", "drwx------"}


@pytest.mark.law("K31")
def test_a_partial_download_is_readable_by_its_owner_alone(folder: Path) -> None:
    files, whole = Folder(folder / "a.db"), Digester()
    whole.update(b"secret")
    known = Attachment("k" * 26, whole.digest(), 6, "text/plain")
    files.append(known, iter([b"sec"]), 0)
    files.append(known, iter([b"ret"]), 3)
    assert files.downloaded_bytes(known) == 6
    assert set(modes(folder).values()) == {"drwx------", "-rw-------"}


def test_a_file_created_by_the_app_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    path.chmod(0o640)
    World(tmp_path).client().insert("todos", "t1", {"title": "x"}).unwrap()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
