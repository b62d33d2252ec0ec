"""Remote pages: merged into the local rows, with the cursor, in one transaction.

Pending edits survive because they are in the merged state already: a page can only add to it. The
path is written for pages of a thousand deltas: rows are read and written by the hundred, and
nothing is executed for a single delta.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from lakesync.client.download.position import position_of
from lakesync.client.storage.rows import NOT_STORED, base_state
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import Op
from lakesync.core.merge import fold
from lakesync.core.messages import log_behind
from lakesync.core.scope import EVERYTHING
from lakesync.errors import InternalError
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from lakesync.client.download.pending_echo import PendingEcho
    from lakesync.client.download.position import Position
    from lakesync.client.recovery.resync import Resyncer
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.client.storage.rows import Rows, RowToStore, StoredRow
    from lakesync.client.upload.outbox import Outbox
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage

_first = itemgetter(0)
Grouped: TypeAlias = "dict[str, dict[str, list[Delta]]]"
"""A page's deltas by table and row id."""


@dataclass
class Pages:
    """Applies pages. Used within the caller's transaction."""

    _connection: sqlite3.Connection
    _client_id: str
    _catalogue: Catalogue
    _rows: Rows
    _outbox: Outbox
    _clock: DeviceClock
    _resync: Resyncer
    _pending_echo: PendingEcho

    def position(self) -> Position:
        """Give where to read on."""
        return position_of(self._connection)

    def is_news(self, page: PullPage, at: Position) -> bool:
        """Tell whether a page that answers a position changes anything in the file.

        Whoever polls mostly gets an empty page, and then writes nothing to the disk.
        """
        if page.count or page.has_more or page.resync is not None:
            return True
        if at != (page.cursor, page.epoch, page.snapshot, page.scope):
            return True
        row = self._connection.execute(
            "SELECT 1 FROM _lakesync_sync WHERE resync_mode OR EXISTS "
            "(SELECT 1 FROM _lakesync_outbox WHERE status IN ('sent', 'late'))"
        )
        return row.fetchone() is not None

    def apply(self, page: PullPage, grouped: Grouped) -> None:
        """Merge a page, which follows the position, and move the cursor behind it.

        Applying it again changes nothing.
        """
        if page.resync is not None:
            self._resync.read_again(page.resync)
        deltas = [delta for rows in grouped.values() for row in rows.values() for delta in row]
        echoed = self._acknowledge_echoes(deltas)
        removals: dict[str, set[str]] = defaultdict(set)
        for delta in [delta for delta in deltas if delta.op is Op.REMOVE]:
            removals[delta.table].add(delta.row_id)
        log_start = None if page.snapshot else self._begin_log()
        until = log_behind(page.snapshot) if page.snapshot else page.cursor
        for name, by_row in grouped.items():
            table = self._catalogue.table(name, sorted(_columns(by_row)), received=True)
            removed = removals.get(name, set())
            self._bring(table, by_row, removed, echoed, log_start=log_start, until=until)
        if deltas:
            newest = max(delta.hlc for delta in deltas)
            # Where rules decide, a row that came into sight comes as it is, ahead of the cursor.
            ruled = page.scope not in {"", EVERYTHING}
            self._clock.follow(newest, max(page.cursor, newest) if ruled else page.cursor)
        self._connection.execute(
            # What was read up to the cursor stays true while a snapshot brings what is newer.
            "UPDATE _lakesync_sync SET epoch = ?, snapshot = ?, scope = ?, "
            "cursor = CASE WHEN ? THEN cursor ELSE ? END",
            (page.epoch, page.snapshot, page.scope, page.snapshot != "", page.cursor),
        )
        if not page.has_more:
            self._resync.finish()
            self._rows.drop_tombstones(page.cursor)
            self._outbox.settle_doubts(page.cursor + stamp(DRIFT_MS_MAX))

    def _begin_log(self) -> Stamp:
        """Give the stamp behind which the log is complete from this page on."""
        at = self.position()
        since = at.cursor
        if at.snapshot:
            since = log_behind(at.snapshot)
            self._resync.on_snapshot_complete(since)
        return since + stamp(DRIFT_MS_MAX)

    def _bring(
        self,
        table: AppTable,
        by_row: dict[str, list[Delta]],
        removed: set[str],
        echoed: dict[tuple[str, str], int],
        *,
        log_start: Stamp | None,
        until: Stamp,
    ) -> None:
        """Merge a page's deltas of one table, complete up to the commit ``until``.

        ``removed`` are rows that rules hide now. ``echoed`` counts the deltas of rows that wait no
        longer, and is brought up to date. For ``log_start`` see `Resyncer.reconcile_received`.
        """
        row_ids = list(by_row)
        stored = self._rows.load(table.id, row_ids)
        anew = self._resync.reconcile_received(table.id, row_ids, stored, log_start)
        if removed:
            self._resync.remove(table.id, removed, stored)
        for row_id in removed:
            by_row[row_id] = _after_removal(by_row[row_id])
        bases = {
            row_id: self._pending_echo.without(base_state(stored[row_id]), writes)
            for row_id, writes in self._pending_echo.on_page(table.id, by_row, until).items()
            if row_id in stored
        }
        anew |= self._rows.replace_bases(table.id, bases, stored)
        for row_id in anew | removed:
            echoed.pop((table.name, row_id), None)  # merged again without its echoes already
        self._rows.save(_merged(table, by_row, stored, echoed))

    def _acknowledge_echoes(self, deltas: list[Delta]) -> dict[tuple[str, str], int]:
        """Take out of the outbox what the page proves to be at the gateway: a receipt was lost.

        Returns:
            How many deltas of which rows wait no longer.
        """
        own = [delta for delta in deltas if delta.client_id == self._client_id]
        echoed: dict[tuple[str, str], int] = defaultdict(int)
        if own:
            # A page may bring a delta twice: with the row that came into sight, and by itself.
            known = {delta.delta_id: delta for delta in self._outbox.known(own)}
            self._outbox.remove(delta.hlc for delta in known.values())
            for delta in known.values():
                echoed[delta.table, delta.row_id] += 1
        return echoed


def grouped_deltas(page: PullPage) -> Grouped:
    """Decode a page and sort its deltas by row; needs no lock."""
    grouped: Grouped = {}
    count = 0
    for run in page.records:
        for delta in decode_records(run):
            count += 1
            by_row = grouped.get(delta.table)
            if by_row is None:
                by_row = grouped[delta.table] = {}
            of_row = by_row.get(delta.row_id)
            if of_row is None:
                by_row[delta.row_id] = [delta]
            else:
                of_row.append(delta)
    if count != page.count:
        raise InternalError(f"the page counts {page.count} deltas and holds {count}; pull again")
    return grouped


def _columns(by_row: dict[str, list[Delta]]) -> set[str]:
    """Give the columns that occur in some rows' deltas."""
    names: set[str] = set()
    for deltas in by_row.values():
        for delta in deltas:
            names.update(map(_first, delta.columns))
    return names


def _after_removal(deltas: list[Delta]) -> list[Delta]:
    """Give what came of a row after it left this client's sight for the last time."""
    last = max(place for place, delta in enumerate(deltas) if delta.op is Op.REMOVE)
    return deltas[last + 1 :]


def _merged(
    table: AppTable,
    by_row: dict[str, list[Delta]],
    stored: dict[str, StoredRow],
    echoed: dict[tuple[str, str], int],
) -> Iterator[RowToStore]:
    """Give the rows that a page changes."""
    for row_id, deltas in by_row.items():
        row = stored.get(row_id, NOT_STORED)
        before = decode_row_state(row.state)
        after = fold(deltas, before)
        if row.base is None:
            if after is not before:
                yield table, row_id, after, None, 0
            continue
        waiting = row.waiting - echoed.get((table.name, row_id), 0)
        base = encode_row_state(_base(row.base, deltas)) if waiting > 0 else None
        yield table, row_id, after, base, max(waiting, 0)


def _base(base: bytes, deltas: list[Delta]) -> RowState:
    return fold(deltas, decode_row_state(base or None))
