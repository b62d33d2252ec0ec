"""Reading everything again: the gateway's buffer was restored, or other rules decide.

All rows stay readable meanwhile. Those to be read again are *stale* until a page brings them. What
is still stale behind the last page is gone: at the gateway, or because rules hide it now. Edits in
the outbox are merged on top of all this, and none is lost; nor are this client's own edits that a
restored buffer may lack (`lakesync.client.recovery.server_restore`). A crash at any point is made
good by going on.

What a page does to a stale row:

- The buffer is another one: the row is replaced by what the page brings.
- The same buffer, a page of whole rows: both are merged, as registers only grow. But what is older
  than the table's tombstone horizon goes, since the gateway may have forgotten a deletion.
- The same buffer, a page of the log: the row was hidden when the rows were read, so it is no more
  than the log tells. Only what this client wrote and the log is yet to bring stays: nobody else
  would have it if the buffer were restored before then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.rows import base_state
from lakesync.core.forgetting import newer_than
from lakesync.core.merge import EMPTY, RowState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Mapping, Sequence

    from lakesync.client.recovery.server_restore import ServerRestore
    from lakesync.client.storage.rows import LocalKey, Rows, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Resync


class _Mode(IntEnum):
    """What becomes of a stale row that a page brings; the numbers are stored."""

    NONE = 0
    REPLACE = 1
    MERGE = 2
    RESTORE = 3
    """As `REPLACE`; and the buffer was restored, and may have lost what this client wrote."""


_NO_BASES: Final[Mapping[LocalKey, RowState]] = MappingProxyType({})
_DROP_PENDING_ECHO: Final = (
    "DELETE FROM _lakesync_pending_echo "
    "WHERE (table_id, row_id) IN (SELECT table_id, row_id FROM _lakesync_stale)"
)
_REPLACING: Final = frozenset({_Mode.REPLACE, _Mode.RESTORE})


@dataclass
class Resyncer:
    """The re-sync of one file. Used within the caller's transaction."""

    _connection: sqlite3.Connection
    _client_id: str
    _rows: Rows
    _server_restore: ServerRestore
    _mode: _Mode = _Mode.NONE
    _horizons: dict[int, Stamp] = field(default_factory=dict)
    """Of tables, by id, up to where the gateway may have forgotten deletions."""

    def reload(self) -> None:
        """Read out of the database whether a re-sync is going on."""
        row = self._connection.execute("SELECT resync_mode, tombstone_horizons FROM _lakesync_sync")
        mode, horizons = row.fetchone()
        self._horizons = {int(table_id): at for table_id, at in json.loads(horizons).items()}
        self._mode = _Mode(mode)

    @property
    def delays_pushes(self) -> bool:
        """Tell whether nothing may be pushed until everything was read.

        An event that was lost keeps its stamp, and would be too late behind a new one.
        """
        return self._mode is _Mode.RESTORE

    def start(self, *, is_restored: bool) -> None:
        """Make every row stale and put the cursor at 0.

        Own edits that a restored buffer may have lost are held back, to be pushed again.
        """
        if is_restored:
            self._server_restore.hold_back()
        self._connection.execute(
            "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
            "SELECT table_id, row_id FROM _lakesync_rows"
        )
        self._connection.execute("DELETE FROM _lakesync_pending_echo")
        self._connection.execute("UPDATE _lakesync_sync SET cursor = 0")
        restores = is_restored or self._mode is _Mode.RESTORE
        self._set_mode(_Mode.RESTORE if restores else _Mode.REPLACE, {})

    def read_again(self, resync: Resync) -> None:
        """Make the rows of some tables stale; the cursor stays."""
        if self._mode in _REPLACING:
            # What was accepted since the re-sync began is not held back, and goes with its row.
            self._server_restore.hold_back(only_received=True)
        tables = self._connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
        self._connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
            "SELECT table_id, row_id FROM _lakesync_rows WHERE table_id = ?",
            [(table_id,) for table_id, name in tables if resync.concerns(name)],
        )
        horizons = dict(self._horizons)
        for table_id, name in tables:
            horizon = max(horizons.get(table_id, 0), resync.tombstone_horizons.get(name, 0))
            if horizon:
                horizons[table_id] = horizon
        self._set_mode(self._mode or _Mode.MERGE, horizons)

    def _set_mode(self, mode: _Mode, horizons: dict[int, Stamp]) -> None:
        self._mode, self._horizons = mode, horizons
        self._connection.execute(
            "UPDATE _lakesync_sync SET resync_mode = ?, tombstone_horizons = ?",
            (mode, json.dumps(horizons)),
        )

    def reconcile_received(
        self,
        table_id: int,
        row_ids: Sequence[str],
        stored: dict[str, StoredRow],
        log_start: Stamp | None,
    ) -> set[str]:
        """Make stored rows ready for what a page brings of them: see the module's docstring.

        Args:
            table_id: the table.
            row_ids: the page's rows. One of them may be stale and not stored: its own edits were
                all that was known of it, and were refused.
            stored: the stored rows, by id; brought up to date.
            log_start: the page is of the log, which brought everything up to this stamp before;
                None if the page is of whole rows.

        Returns:
            The ids of the rows that were merged again, out of new bases and the edits that wait.
        """
        if not self._mode:
            return set()
        stale = set(self._rows.stale(table_id, row_ids))
        bases: dict[LocalKey, RowState] = {}
        if self._mode is _Mode.MERGE:
            known = {row_id: base_state(stored[row_id]) for row_id in stale & stored.keys()}
            if log_start is None:
                self._no_longer_stale([(table_id, row_id) for row_id in stale])
                horizon = self._horizons.get(table_id, 0)
                if not horizon:
                    return set()
                newer = {row_id: newer_than(state, horizon) for row_id, state in known.items()}
                return self._rows.replace_bases(table_id, newer, stored)
            for row_id, state in known.items():
                bases[table_id, row_id] = self._own(state, log_start)
        self._drop(table_id, stale, stored, bases)
        return stale

    def _own(self, state: RowState, log_start: Stamp) -> RowState:
        """Give what this client wrote of a row, and the log is yet to bring."""
        own = {
            name: register
            for name, register in state.columns.items()
            if register[0] > log_start and register[1] == self._client_id
        }
        is_inserted = any(register[0] == state.alive for register in own.values())
        return RowState(state.alive if is_inserted else 0, 0, own)

    def on_snapshot_complete(self, since: Stamp) -> None:
        """Note that a snapshot was read; the log behind it begins at ``since``."""
        if self._mode in _REPLACING:
            self._server_restore.on_snapshot_complete(since)

    def remove(self, table_id: int, row_ids: Collection[str], stored: dict[str, StoredRow]) -> None:
        """Drop rows that rules hide now, but not their waiting edits; ``stored`` too."""
        self._drop(table_id, row_ids, stored)

    def finish(self) -> None:
        """Drop all rows that no page brought; ends the re-sync, if there is one."""
        if not self._mode:
            return
        self._connection.execute(_DROP_PENDING_ECHO)
        stale = self._connection.execute("SELECT table_id, row_id FROM _lakesync_stale").fetchall()
        self._replace(stale)
        self._server_restore.finish()
        self._set_mode(_Mode.NONE, {})

    def _drop(
        self,
        table_id: int,
        row_ids: Collection[str],
        stored: dict[str, StoredRow],
        bases: Mapping[LocalKey, RowState] = _NO_BASES,
    ) -> None:
        self._replace([(table_id, row_id) for row_id in row_ids], bases)
        self._rows.load_again(table_id, list(row_ids), stored)

    def _replace(
        self, keys: list[LocalKey], bases: Mapping[LocalKey, RowState] = _NO_BASES
    ) -> None:
        """Merge rows again out of new bases, or of nothing but the edits that wait."""
        if keys:
            self._rows.refold(keys, {key: bases.get(key, EMPTY) for key in keys})
            self._no_longer_stale(keys)

    def _no_longer_stale(self, keys: list[LocalKey]) -> None:
        self._connection.executemany(
            "DELETE FROM _lakesync_stale WHERE table_id = ? AND row_id = ?", keys
        )
