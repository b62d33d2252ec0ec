"""Reading again: when the gateway's buffer is another one than before, or other rules decide.

The rows stay readable while it lasts. The rows concerned become *stale*, until a page brings them;
when the last page is applied, what is still stale is gone from the gateway, or from this client's
sight, and so from here. Edits in the outbox are merged on top throughout, and lose nothing; so are
this client's own edits that another buffer may have lost
(`lakesync.client.recovery.server_restore`). A crash at any point goes on where it stopped.

Where the buffer is another one, the first page that brings a row replaces what was held of it. In
the same buffer what was held was true, and a page of rows is merged with it: registers only grow.
But where the gateway may have forgotten that a row was deleted, what was held from before that
goes; and a row that only the log behind the rows tells of is no more than that tells: it was not
in sight when the rows were read. Only this client's own edits of which the log is yet to tell stay:
if the buffer is restored before it does, nobody else has them.
"""

from __future__ import annotations

import json
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.rows import base_state
from lakesync.core.forgetting import newer_than
from lakesync.core.merge import EMPTY, RowState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from lakesync.client.recovery.server_restore import ServerRestore
    from lakesync.client.storage.rows import Held, LocalKey, Rows
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Resync


class _Mode(IntEnum):
    """What becomes of a stale row that a page brings; the numbers are stored."""

    NONE = 0
    REPLACE = 1
    MERGE = 2
    RESTORE = 3
    """As `REPLACE`, and the buffer is another one, which may have lost what is held back."""


_DROP_PENDING_ECHO: Final = (
    "DELETE FROM _lakesync_pending_echo "
    "WHERE (table_id, row_id) IN (SELECT table_id, row_id FROM _lakesync_stale)"
)
_REPLACING: Final = frozenset({_Mode.REPLACE, _Mode.RESTORE})


class Resyncer:
    """The rebuild of one file. Used within the caller's transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        client_id: str,
        rows: Rows,
        server_restore: ServerRestore,
    ) -> None:
        self._connection = connection
        self._client_id = client_id
        self._rows = rows
        self._server_restore = server_restore
        self._mode = _Mode.NONE
        self._horizons: dict[int, Stamp] = {}
        """Of tables, by id, up to where the gateway may have forgotten deletions."""

    def reload(self) -> None:
        """Read out of the database whether a rebuild is going on."""
        row = self._connection.execute("SELECT rebuilding, tombstone_horizons FROM _lakesync_sync")
        mode, horizons = row.fetchone()
        self._horizons = {int(table_id): at for table_id, at in json.loads(horizons).items()}
        self._mode = _Mode(mode)

    @property
    def delays_pushes(self) -> bool:
        """Tell whether nothing may be pushed until everything was read.

        An event that was lost keeps its stamp, and would be too late behind a new one.
        """
        return self._mode is _Mode.RESTORE

    def start(self, *, offers: bool) -> None:
        """Make every row stale and put the cursor at 0; own edits are held back, to be offered.

        Args:
            offers: own edits may be lost, so offer them once more.
        """
        if offers:
            self._server_restore.make()
        self._connection.execute(
            "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
            "SELECT table_id, row_id FROM _lakesync_rows"
        )
        self._connection.execute("DELETE FROM _lakesync_pending_echo")
        self._connection.execute("UPDATE _lakesync_sync SET cursor = 0")
        restored = offers or self._mode is _Mode.RESTORE
        self._run(_Mode.RESTORE if restored else _Mode.REPLACE)

    def read_again(self, resync: Resync) -> None:
        """Make the rows of some tables stale; the cursor stays."""
        if self._mode in _REPLACING:
            # What was accepted since the rebuild began is in no offer, and goes with its row.
            self._server_restore.make(met=True)
        local = self._connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
        self._connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
            "SELECT table_id, row_id FROM _lakesync_rows WHERE table_id = ?",
            [(table_id,) for table_id, name in local if resync.concerns(name)],
        )
        horizons = dict(self._horizons)
        for table_id, name in local:
            horizon = max(horizons.get(table_id, 0), resync.tombstone_horizons.get(name, 0))
            if horizon:
                horizons[table_id] = horizon
        self._run(self._mode or _Mode.MERGE, horizons)

    def _run(self, mode: _Mode, horizons: Mapping[int, Stamp] = MappingProxyType({})) -> None:
        self._mode, self._horizons = mode, dict(horizons)
        self._connection.execute(
            "UPDATE _lakesync_sync SET rebuilding = ?, tombstone_horizons = ?",
            (mode, json.dumps(self._horizons)),
        )

    def reconcile_received(
        self, table_id: int, row_ids: Sequence[str], stored: dict[str, Held], told: Stamp | None
    ) -> set[str]:
        """Note that a page brings rows; what is kept of them here may have to be let go.

        Args:
            table_id: the table.
            row_ids: the rows. One of them may be stale and not stored: its own edits were all that
                was known of it, and were refused.
            stored: those that are stored here, by id; brought up to date.
            told: what was stamped up to here was told before the page, which is of the log and may
                tell of a part of a row; None if it is of whole rows.

        Returns:
            The ids of the rows that were merged again, out of what is left and edits that wait.
        """
        if not self._mode:
            return set()
        met = set(self._rows.stale(table_id, row_ids))
        keys = [(table_id, row_id) for row_id in met]
        shared = met & stored.keys()
        left: dict[LocalKey, RowState] = {}
        if self._mode is _Mode.MERGE:
            if told is None:
                self._unmark(keys)
                horizon = self._horizons.get(table_id, 0)
                if not horizon:
                    return set()
                newer = {
                    row_id: newer_than(base_state(stored[row_id]), horizon) for row_id in shared
                }
                return self._rows.cut(table_id, newer, stored)
            left = {(table_id, row): self._own(base_state(stored[row]), told) for row in shared}
        self._let_go(keys, left)
        self._load_again(table_id, list(met), stored)
        return met

    def _own(self, state: RowState, told: Stamp) -> RowState:
        """Give what of a row this client wrote, and the log is yet to tell."""
        own = {
            name: register
            for name, register in state.columns.items()
            if register[0] > told and register[1] == self._client_id
        }
        is_inserted = any(register[0] == state.alive for register in own.values())
        return RowState(state.alive if is_inserted else 0, 0, own)

    def on_snapshot_complete(self, since: Stamp) -> None:
        """Note that a snapshot was read; the log behind it begins at ``since``."""
        if self._mode in _REPLACING:
            self._server_restore.on_snapshot_complete(since)

    def remove(self, table_id: int, row_ids: Sequence[str], stored: dict[str, Held]) -> None:
        """Let go of rows that left this client's sight, apart from edits that wait.

        Args:
            table_id: the table.
            row_ids: the rows.
            stored: rows of the table by id; brought up to date.
        """
        self._let_go([(table_id, row_id) for row_id in row_ids])
        self._load_again(table_id, row_ids, stored)

    def finish(self) -> None:
        """Let go of all rows that no page brought; ends the rebuild, if there is one."""
        if not self._mode:
            return
        self._connection.execute(_DROP_PENDING_ECHO)
        stale = self._connection.execute("SELECT table_id, row_id FROM _lakesync_stale").fetchall()
        self._let_go(stale)
        self._server_restore.settle()
        self._run(_Mode.NONE)

    def _load_again(self, table_id: int, row_ids: Sequence[str], stored: dict[str, Held]) -> None:
        for row_id in row_ids:
            stored.pop(row_id, None)
        stored.update(self._rows.load(table_id, row_ids))

    def _let_go(
        self, keys: list[LocalKey], left: Mapping[LocalKey, RowState] = MappingProxyType({})
    ) -> None:
        if keys:
            self._rows.refold(keys, {key: left.get(key, EMPTY) for key in keys})
            self._unmark(keys)

    def _unmark(self, keys: list[LocalKey]) -> None:
        self._connection.executemany(
            "DELETE FROM _lakesync_stale WHERE table_id = ? AND row_id = ?", keys
        )
