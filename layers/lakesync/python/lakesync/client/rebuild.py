"""Starting over, when the gateway's buffer is another one than before, or other rules decide.

The rows stay readable while it lasts. Every row becomes *stale*; the first page that brings a row
replaces what was held of it, instead of merging with it; when the last page is applied, what is
still stale is gone from the gateway, and so from here. Edits in the outbox are merged on top
throughout, and lose nothing; so are this client's own edits that the other buffer may have lost
(`lakesync.client.offers`). A crash at any point goes on where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.merge import EMPTY
from lakesync.core.messages import log_behind

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from lakesync.client.offers import Offers
    from lakesync.client.rows import Held, Rows


class Rebuild:
    """The rebuild of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, rows: Rows, offers: Offers) -> None:
        self._connection = connection
        self._rows = rows
        self._offers = offers
        self._running = False

    def reload(self) -> None:
        """Read out of the database whether a rebuild is going on."""
        row = self._connection.execute("SELECT rebuilding FROM _lakesync_sync").fetchone()
        self._running = bool(row[0])

    def start(self, *, offers: bool) -> None:
        """Make every row stale and put the cursor at 0; own edits are held back, to be offered.

        Args:
            offers: own edits may be lost, so offer them once more.
        """
        if offers:
            self._offers.make()
        self._connection.execute(
            "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
            "SELECT table_id, row_id FROM _lakesync_rows"
        )
        self._connection.execute("UPDATE _lakesync_sync SET cursor = 0, rebuilding = 1")
        self._running = True

    def meet(self, table_id: int, stored: dict[str, Held]) -> set[str]:
        """Let go of what was held of the stale rows among these, apart from edits that wait.

        Args:
            table_id: the table.
            stored: the rows by id; brought up to date.

        Returns:
            The ids of the rows concerned.
        """
        if not self._running:
            return set()
        met = set(self._rows.stale(table_id, list(stored)))
        self._let_go([(table_id, row_id) for row_id in met])
        for row_id in met:
            del stored[row_id]
        stored.update(self._rows.load(table_id, list(met)))
        return met

    def pictured(self, snapshot: str) -> None:
        """Note that a snapshot was read; the log behind it begins."""
        if self._running:
            self._offers.pictured(log_behind(snapshot))

    def remove(self, table_id: int, row_ids: Sequence[str], stored: dict[str, Held]) -> None:
        """Let go of rows that left this client's sight, apart from edits that wait.

        Args:
            table_id: the table.
            row_ids: the rows.
            stored: rows of the table by id; brought up to date.
        """
        self._let_go([(table_id, row_id) for row_id in row_ids])
        for row_id in row_ids:
            stored.pop(row_id, None)
        stored.update(self._rows.load(table_id, row_ids))

    def finish(self) -> None:
        """Let go of all rows that no page brought; ends the rebuild, if there is one."""
        if not self._running:
            return
        stale = self._connection.execute("SELECT table_id, row_id FROM _lakesync_stale").fetchall()
        self._let_go(stale)
        self._offers.settle()
        self._connection.execute("UPDATE _lakesync_sync SET rebuilding = 0")
        self._running = False

    def _let_go(self, keys: list[tuple[int, str]]) -> None:
        if keys:
            self._rows.refold(keys, dict.fromkeys(keys, EMPTY))
        self._connection.executemany(
            "DELETE FROM _lakesync_stale WHERE table_id = ? AND row_id = ?", keys
        )
