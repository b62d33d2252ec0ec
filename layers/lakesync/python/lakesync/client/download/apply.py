"""Remote pages: merged into the local rows, with the cursor, in one transaction.

Pending edits survive because the merged state already contains them: a page can only add to it. The
code is optimised for pages of a thousand deltas: rows are read and written by the hundred, and no
statement is executed for a single delta.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from lakesync.client.download.lost_writes import LostWrites
from lakesync.client.download.pending_echo import PendingEcho
from lakesync.client.recovery.journal import Journal
from lakesync.client.recovery.resync import Resyncer
from lakesync.client.storage.conflicts import Clash
from lakesync.client.storage.new_rows import insert_new
from lakesync.client.storage.rows import NOT_STORED
from lakesync.client.upload.whole_again import insert_again
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, fold
from lakesync.core.messages import log_behind
from lakesync.core.names import folded
from lakesync.core.scope import EVERYTHING
from lakesync.core.snapshot_order import reads_all_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.client.download.arrived import Arrived, ArrivedRows
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.position import Position
    from lakesync.client.storage.rows import RowToStore, StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage

Echoed: TypeAlias = "Counter[tuple[str, str]]"
"""How many deltas of a row, by table and row id, left the outbox because the page shows them."""


class Pages:
    """Applies pages. Used within the caller's transaction."""

    def __init__(self, file: ClientFile) -> None:
        self.file = file
        self.resync = Resyncer(file)
        self.pending_echo = PendingEcho(file)
        self.journal = Journal(file)

    def is_news(self, page: PullPage, at: Position) -> bool:
        """Return whether a page that answers a position changes anything in the file.

        A client that polls mostly gets an empty page, and then writes nothing to the disk.
        """
        if page.count or page.has_more or page.resync is not None:
            return True
        if at != (page.cursor, page.epoch, page.snapshot, page.scope):
            return True
        row = self.file.connection.execute(
            "SELECT 1 FROM _lakesync_sync WHERE resync_mode OR NOT synced_ms OR EXISTS "
            "(SELECT 1 FROM _lakesync_outbox WHERE status IN ('sent', 'late'))"
        )
        return row.fetchone() is not None or self.pending_echo.has_passed(page.cursor)

    def apply(self, page: PullPage, arrived: Arrived) -> tuple[LostWrite, ...]:
        """Merge a page, which follows the position, and move the cursor; safe to repeat.

        Returns the lost writes that it shows.
        """
        if page.resync is not None:
            self.resync.read_again(page.resync)
            if reads_all_tables(page.snapshot):
                self._note_row_tables(page.resync.tables)
        echoed = self._acknowledge_echoes(arrived.own)
        log_start = None if page.snapshot else self._begin_log()
        until = log_behind(page.snapshot) if page.snapshot else page.cursor
        lost = LostWrites(self.file)
        for name, rows in arrived.tables.items():
            table = self.file.catalogue.table(name, sorted(rows.columns), received=True)
            rest = self._insert_new(table, rows)
            if rest:
                self._bring(table, rest, echoed, lost, log_start=log_start, until=until)
        if arrived.newest:
            newest = arrived.newest
            # With sync rules, a row that becomes visible is sent at once, ahead of the cursor.
            ruled = page.scope not in {"", EVERYTHING}
            self.file.clock.follow(newest, max(page.cursor, newest) if ruled else page.cursor)
        if not page.snapshot:
            self.pending_echo.hide(page.cursor)
            lost.unread.end(page.cursor)
        if page.scope != self.file.position().scope:
            self.file.outbox.release_undeclared()  # other rules may name their tables
        self.file.connection.execute(
            # What was read up to the cursor stays true while a snapshot brings newer data.
            "UPDATE _lakesync_sync SET epoch = ?, snapshot = ?, scope = ?, "
            "cursor = CASE WHEN ? THEN cursor ELSE ? END",
            (page.epoch, page.snapshot, page.scope, page.snapshot != "", page.cursor),
        )
        if not page.has_more:
            self.file.connection.execute(
                "UPDATE _lakesync_sync SET synced_ms = ?", (max(1, self.file.clock.server_ms()),)
            )
            self.resync.finish()
            self.file.rows.drop_tombstones(page.cursor)
            self.journal.expire(page.cursor)
            self.file.outbox.settle_doubts(page.cursor + stamp(DRIFT_MS_MAX))
        return lost.keep()

    def _note_row_tables(self, names: Iterable[str]) -> None:
        """Note the tables whose rows a snapshot reads; all others are in the log after it."""
        self.file.connection.execute("DELETE FROM _lakesync_row_tables")
        self.file.connection.executemany(
            "INSERT OR IGNORE INTO _lakesync_row_tables VALUES (?)",
            [(folded(name),) for name in names],
        )

    def _begin_log(self) -> Stamp:
        """Return the stamp behind which the log is complete from this page on."""
        at = self.file.position()
        since = at.cursor
        if at.snapshot:
            since = log_behind(at.snapshot)
            self.resync.on_snapshot_complete(since)
        return since + stamp(DRIFT_MS_MAX)

    def _insert_new(self, table: AppTable, arrived: ArrivedRows) -> dict[str, list[Delta]]:
        """Write the rows that may be new, if all of them are; returns those still to be merged."""
        # Of what is not stored, stale or pending there is nothing to merge with.
        may_be_new = self.pending_echo.is_empty and not self.resync.has_stale(table.id)
        if may_be_new and insert_new(self.file.rows, table, arrived.inserts, arrived.several):
            return arrived.others
        return arrived.by_row()

    def _bring(
        self,
        table: AppTable,
        by_row: dict[str, list[Delta]],
        echoed: Echoed,
        lost: LostWrites,
        *,
        log_start: Stamp | None,
        until: Stamp,
    ) -> None:
        """Merge a page's deltas of one table, complete up to the commit ``until``.

        For ``log_start`` see `Resyncer.new_bases`.
        """
        rows = self.file.rows
        stored = seen = rows.load(table.id, by_row)
        bases = self.resync.new_bases(table.id, by_row, stored, log_start)
        # Whole rows do not say which of two writes came first.
        not_compared = by_row.keys() if log_start is None else set(bases)
        lost.unread.begin(table, by_row, not_compared)
        self._hide(table, by_row, stored, bases, lost, until)
        for row_id, writes in self.pending_echo.on_page(table.id, by_row, until).items():
            if row_id in stored:
                base = bases.get(row_id, stored[row_id].known)
                bases[row_id] = self.pending_echo.without(base, writes)
        if bases:
            rows.refold({(table.id, row_id): base for row_id, base in bases.items()})
            stored = rows.load(table.id, by_row)
        for row_id in bases:
            echoed.pop((table.name, row_id), None)  # merged again without its echoes already

        def compare(row_id: str, after: RowState) -> None:
            if row_id not in not_compared:
                before = seen.get(row_id, NOT_STORED)
                lost.compare(table, row_id, before, after, by_row[row_id], until)

        rows.save(_merged(table, by_row, stored, echoed, compare))
        insert_again(self.file, table, by_row, seen)

    def _hide(
        self, table: AppTable, by_row: dict[str, list[Delta]], stored: dict[str, StoredRow],
        bases: dict[str, RowState], lost: LostWrites, until: Stamp,
    ) -> None:  # fmt: skip
        """Give rows that a page removes an empty base, and leave what the page brings after it."""
        hidden = {delta.row_id for row in by_row.values() for delta in row if delta.op is Op.REMOVE}
        if not hidden:
            return
        removed = {row_id: stored.get(row_id, NOT_STORED) for row_id in hidden}
        lost.unread.hide(table, removed)
        for row_id, row in removed.items():
            for clash in _deleted_late(table.id, row, by_row[row_id], self.file.client_id):
                lost.add(clash)
            by_row[row_id] = _after_removal(by_row[row_id])
            bases[row_id] = EMPTY
        self.pending_echo.keep_removed(table.id, removed, until)

    def _acknowledge_echoes(self, own: list[Delta]) -> Echoed:
        """Remove from the outbox what the page proves to be at the gateway: a receipt was lost."""
        # A page may contain a delta twice: in the row that became visible, and separately.
        known = {delta.delta_id: delta for delta in self.file.outbox.known(own)}
        self.file.outbox.remove(delta.hlc for delta in known.values())
        return Counter((delta.table, delta.row_id) for delta in known.values())


def _deleted_late(table_id: int, row: StoredRow, deltas: list[Delta], me: str) -> Iterator[Clash]:
    """Yield the own writes that are gone with a row of which a late delete left too little."""
    for late in deltas:
        if late.op is Op.DELETE and late.client_id != me:
            for name, (hlc, client_id, value) in row.state.columns.items():
                if client_id == me and hlc > late.hlc:
                    other = (None, late.hlc, late.client_id)
                    row_id = late.row_id
                    yield Clash(table_id, row_id, name, value, hlc, *other, None, False, True)


def _after_removal(deltas: list[Delta]) -> list[Delta]:
    """Return the deltas of a row after this client last lost sight of the row."""
    last = max(place for place, delta in enumerate(deltas) if delta.op is Op.REMOVE)
    return deltas[last + 1 :]


def _merged(
    table: AppTable,
    by_row: dict[str, list[Delta]],
    stored: dict[str, StoredRow],
    echoed: Echoed,
    compare: Callable[[str, RowState], None],
) -> Iterator[RowToStore]:
    """Yield the rows that a page changes; ``compare`` is told what each of them is after it."""
    for row_id, deltas in by_row.items():
        row = stored.get(row_id, NOT_STORED)
        before = row.state
        after = fold(deltas, before)
        compare(row_id, after)
        if row.base is None:
            if after is not before:
                yield table, row_id, after, None, 0
            continue
        waiting = max(row.waiting - echoed[table.name, row_id], 0)
        base = fold(deltas, row.known) if waiting else None
        yield table, row_id, after, base, waiting
