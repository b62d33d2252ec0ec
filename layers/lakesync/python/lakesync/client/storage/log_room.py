"""Preallocates SQLite's write-ahead log, so that commits overwrite blocks instead of growing it.

While that file grows, each sync to disk also makes the file system record the new length, which
doubles its cost. SQLite starts its log at the front again after each checkpoint, and never shortens
it while the file is open. So a process that edits often extends it once, by a transaction that is
too large for memory and is rolled back.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

LOG_PAGES_MAX: Final = 1_000
"""The log's length before SQLite checkpoints it into the file: 4 MB, some hundreds of edits."""
COMMITS_BEFORE: Final = 32
"""Commits of one process before it makes room: one that edits rarely writes nothing for this."""
_CACHE_PAGES: Final = 16
"""A transaction with more pages than these goes to the log before it ends."""


class LogRoom:
    """The log of one writing connection. Used only while holding the database's lock."""

    def __init__(self, connection: sqlite3.Connection, path: str | Path) -> None:
        self._connection = connection
        self._log = Path(f"{path}-wal")
        self._commits = 0

    def on_begin(self) -> bool:
        """Count a transaction that is about to begin; makes room before the 32nd, then True."""
        self._commits += 1
        if self._commits < COMMITS_BEFORE:
            return False
        # Without room everything works as it does with it.
        with contextlib.suppress(sqlite3.Error, OSError):
            self._make()
        return True

    def _make(self) -> None:
        execute = self._connection.execute
        ((page_bytes,),) = execute("PRAGMA page_size").fetchall()
        room = LOG_PAGES_MAX * page_bytes - self._log.stat().st_size
        if room <= 0:
            return
        ((cache,),) = execute("PRAGMA cache_size").fetchall()
        execute("BEGIN IMMEDIATE")
        try:
            execute(f"PRAGMA cache_size = {_CACHE_PAGES}")
            execute("UPDATE _lakesync_sync SET snapshot = zeroblob(?)", (room,))
        finally:
            if self._connection.in_transaction:  # a full disk has ended it
                execute("ROLLBACK")
            execute(f"PRAGMA cache_size = {cache}")
