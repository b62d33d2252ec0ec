"""What a restored buffer may have lost: this client's own edits, offered to it once more.

An edit that was accepted has left the outbox, and a buffer that is restored to an earlier moment
no longer holds those that were accepted after it. The rows of this file still tell what they wrote:
so before a rebuild lets go of a row, the writes in it that are this client's own go back into the
outbox, with the stamps that they had. When everything was read, what turned out not to be lost
leaves it again; the rest is pushed, and means what it meant.

    held back ──everything is read, it is there──► gone
        ├──it may be trimmed, or be hidden───► offered ──receipt, or too late──► gone
        └───────everything is read, it is not──► lost ──receipt──► gone
                                                   └──too late──► pending, to be stamped again

Inserts and deletes of which a row tells only the stamp are offered by everyone who holds the row.
Law K13: ``docs/spec/client.md``. Why so: ``docs/adr/0004-restored-buffer.md``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lakesync.client.download.pending_echo import ruled_tables
from lakesync.client.storage.rows import Held, base_state
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
_MET = (
    "SELECT table_id, row_id, state, base, waiting FROM _lakesync_rows AS held WHERE NOT EXISTS ("
    "SELECT 1 FROM _lakesync_stale WHERE table_id = held.table_id AND row_id = held.row_id)"
)


class ServerRestore:
    """The offers of one file. Used within the caller's transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        client_id: str,
        catalogue: Catalogue,
        rows: Rows,
        outbox: Outbox,
    ) -> None:
        self._connection = connection
        self._client_id = client_id
        self._catalogue = catalogue
        self._rows = rows
        self._outbox = outbox

    def make(self, *, met: bool = False) -> None:
        """Hold this client's own writes back, until the rebuild has ended.

        Args:
            met: only of rows that the rebuild has met, for it is to meet them once more.
        """
        rows = _MET if met else _ROWS
        # A stamp has one place in the outbox: this client's own come first, then all others.
        for anonymous in (False, True):
            self._connection.executemany(_PUT, self._own(rows, anonymous=anonymous))
        counted = self._connection.execute(
            "SELECT count(*), table_id, row_id FROM _lakesync_outbox GROUP BY table_id, row_id"
        ).fetchall()
        # The base holds them too, until the row is let go of: then it is merged anew.
        self._connection.executemany(
            "UPDATE _lakesync_rows SET base = coalesce(base, state), waiting = ? "
            "WHERE table_id = ? AND row_id = ?",
            counted,
        )

    def _own(self, rows: str, *, anonymous: bool) -> Iterator[tuple[int, str, int, str, bytes]]:
        for table_id, row_id, *fields in self._connection.execute(rows):
            known = base_state(Held(*fields))
            table = self._catalogue.by_id(table_id).name
            for delta in deltas_of(table, row_id, known, nobody=self._client_id):
                if delta.client_id == self._client_id and anonymous is not bool(delta.columns):
                    run = encode_records((delta,))
                    yield delta.hlc, Status.HELD_BACK, table_id, row_id, run

    def on_snapshot_complete(self, since: Stamp) -> None:
        """Offer what a snapshot may not have shown, now that the log behind it begins.

        Args:
            since: where. No commit up to here holds a delta from beyond the drift bound.
        """
        self._outbox.offer(since + stamp(DRIFT_MS_MAX))

    def settle(self) -> None:
        """Let go of what everything that was read shows not to be lost; offer the rest."""
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
        for table_id in self._hidden():
            self._outbox.offer_of(table_id)
        self._outbox.bring_back()

    def _hidden(self) -> list[int]:
        """Give the tables of which rules may hide from this client what it wrote itself."""
        return ruled_tables(self._connection)
