"""After the server was restored: this client's own edits that the buffer may have lost.

An accepted edit has left the outbox, and a buffer that is restored to an earlier moment lacks what
it accepted since. The rows of this file still show what was written. So before a re-sync drops a
row, this client's own writes in it go back into the outbox, under the stamps that they had. When
everything was read, those that the gateway proved to have leave again; the rest is pushed.

    held_back ──everything is read, it is there──────────► gone
        ├──it may be trimmed, or hidden by rules──► offered ──receipt, or too late──► gone
        └──everything is read, it is not there────► lost ──receipt──► gone
                                                     └──too late──► pending, to be stamped again

Of an insert or a delete without columns a row knows only the stamp, and not whose it is: every
client that has the row pushes those. Law K13: ``docs/spec/client.md``; reasons:
``docs/adr/0004-restored-buffer.md``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.client.download.pending_echo import ruled_tables
from lakesync.client.storage.rows import StoredRow, base_state
from lakesync.client.upload.entries import Status
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.merge import fold
from lakesync.core.row_deltas import deltas_of
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.rows import LocalKey, Rows
    from lakesync.client.upload.outbox import Outbox
    from lakesync.core.clock import Stamp

_PUT = (
    "INSERT OR IGNORE INTO _lakesync_outbox (hlc, txn, status, table_id, row_id, run) "
    "VALUES (?, NULL, ?, ?, ?, ?)"
)
_ROWS = "SELECT table_id, row_id, state, base, waiting FROM _lakesync_rows"
_RECEIVED_ROWS = f"{_ROWS} WHERE (table_id, row_id) NOT IN (SELECT * FROM _lakesync_stale)"  # noqa: S608 - ours


@dataclass
class ServerRestore:
    """The own edits of one file that are held back. Used within the caller's transaction."""

    _connection: sqlite3.Connection
    _client_id: str
    _catalogue: Catalogue
    _rows: Rows
    _outbox: Outbox

    def hold_back(self, *, only_received: bool = False) -> None:
        """Hold this client's own writes back until the re-sync has ended.

        Perhaps only those in rows that the re-sync has brought, since it brings them again.
        """
        rows = _RECEIVED_ROWS if only_received else _ROWS
        # The outbox takes one entry for a stamp: what is surely this client's own comes first.
        for anonymous in (False, True):
            self._connection.executemany(_PUT, self._own(rows, anonymous=anonymous))
        counted = self._connection.execute(
            "SELECT count(*), table_id, row_id FROM _lakesync_outbox GROUP BY table_id, row_id"
        ).fetchall()
        # The base has them too, until the row is dropped: then it is merged again.
        self._connection.executemany(
            "UPDATE _lakesync_rows SET base = coalesce(base, state), waiting = ? "
            "WHERE table_id = ? AND row_id = ?",
            counted,
        )

    def _own(self, rows: str, *, anonymous: bool) -> Iterator[tuple[int, str, int, str, bytes]]:
        for table_id, row_id, *fields in self._connection.execute(rows):
            known = base_state(StoredRow(*fields))
            table = self._catalogue.by_id(table_id).name
            for delta in deltas_of(table, row_id, known, nobody=self._client_id):
                if delta.client_id == self._client_id and anonymous is not bool(delta.columns):
                    run = encode_records((delta,))
                    yield delta.hlc, Status.HELD_BACK, table_id, row_id, run

    def on_snapshot_complete(self, since: Stamp) -> None:
        """Let what a snapshot may lack be pushed; the log behind it begins at ``since``."""
        # No commit up to there has a delta from beyond the drift bound.
        self._outbox.offer(since + stamp(DRIFT_MS_MAX))

    def finish(self) -> None:
        """Drop what the gateway has, now that everything was read; let the rest be pushed."""
        entries: dict[int, list[tuple[int, str, bytes]]] = defaultdict(list)
        for hlc, table_id, row_id, run in self._outbox.held_back():
            entries[table_id].append((hlc, row_id, run))
        there: list[int] = []
        touched: dict[LocalKey, None] = {}
        for table_id, writes in entries.items():
            stored = self._rows.load(table_id, sorted({row_id for _, row_id, _ in writes}))
            for hlc, row_id, run in writes:
                base = base_state(stored[row_id])
                if fold(decode_records(run), base) is base:
                    there.append(hlc)
                    touched[table_id, row_id] = None
        self._outbox.remove(there)
        self._rows.refold(touched, {})
        for table_id in ruled_tables(self._connection):
            self._outbox.offer_of(table_id)
        self._outbox.bring_back()
