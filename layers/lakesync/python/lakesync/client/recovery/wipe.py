"""Signing out: everything that a client's file holds is gone from the disk.

The contents are removed before the file is, and overwritten in the process: a crash in between
leaves an empty file, and no copy of a page in the log. The bytes of attachments are removed, but
not overwritten. No program can control what the storage underneath keeps of overwritten blocks.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lakesync.client.attachments.folder import Folder
from lakesync.client.storage.app_table import quote
from lakesync.client.storage.reading import answer_of
from lakesync.client.storage.waiting import what_waits
from lakesync.errors import Conflict

if TYPE_CHECKING:
    import sqlite3

    from lakesync.client.storage.file import ClientFile

_OTHER_FILES = ("-wal", "-shm", "-journal")


def wipe(file: ClientFile, path: str | Path, *, lose_edits: bool) -> None:
    """Empty a file, close it and remove it."""
    writer = file.database.writer
    with file.database.lock:
        file.database.must_be_idle()
        writer.execute("PRAGMA secure_delete = ON").close()
        with file.database.transaction() as connection:
            if not lose_edits:
                _check_nothing_is_lost(connection)
            _drop_everything(connection)
        writer.execute("VACUUM")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    file.database.close()
    Folder(path).remove()
    for ending in (*_OTHER_FILES, ""):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def _check_nothing_is_lost(connection: sqlite3.Connection) -> None:
    if waiting := what_waits(partial(answer_of, connection)):
        raise Conflict(
            f"{waiting}; this would be lost: sync first and see to it, or wipe with "
            "lose_edits=True; nothing was wiped"
        )


def _drop_everything(connection: sqlite3.Connection) -> None:
    # Views and triggers first: a table that they name could not be dropped before them.
    there = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger', 'table') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY type = 'table', type = 'view', rootpage DESC"
    ).fetchall()
    for kind, name in there:
        connection.execute(f"DROP {kind} IF EXISTS {quote(name)}")
