"""Several concurrent writers of one table, each with rows that no other writes.

Rows are written without the table's lock; only the history, which has an order, and the mark need
it. If rows are refused, or were before, one writer runs at a time, as with any batch: dead letters
belong to the whole table.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.adapters.batches import merged
from lakesync.adapters.collector import collector_paused
from lakesync.adapters.database import Inserted, old_until
from lakesync.errors import Contention, LakeSyncError
from lakesync.result import Err, Ok
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.database import TableBatch
    from lakesync.adapters.sql.dialect import Cursor
    from lakesync.adapters.sql.ledger import Ledger
    from lakesync.adapters.sql.query_tables import QueryTables
    from lakesync.adapters.sql.transactions import Transactions
    from lakesync.result import Result

T = TypeVar("T")

COMMITS_FORGOTTEN: Final = 200
"""Old commits that a transaction forgets, in addition to one for each delta that it writes: a long
history shrinks gradually, and faster than it grows."""


class WritesSideBySide:
    """`lakesync.adapters.database.SideBySide` in a SQL database."""

    def __init__(
        self, tables: QueryTables, transactions: Transactions, history_ms: int | None
    ) -> None:
        self._tables = tables
        self._transactions = transactions
        self._history_ms = history_ms

    def row_ahead(self, table: str, row_id: str, rows: int) -> Result[str, LakeSyncError]:
        """Return the id of a later row: the database walks that many entries of an index."""

        def work(cursor: Cursor, ledger: Ledger) -> str:
            cursor.execute(
                "SELECT row_id FROM lakesync_rows WHERE gateway = %s AND table_name = %s "
                "AND row_id > %s ORDER BY row_id LIMIT 1 OFFSET %s",
                (ledger.gateway, table, row_id.encode(), rows - 1),
            )
            row = cursor.fetchone()
            return bytes(row[0]).decode() if row else ""

        return self._answer(lambda: self._transactions.run(work))

    def insert_apart(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Apply a batch of rows that no other writer changes meanwhile; see `SideBySide`."""
        return self._answer(lambda: self._inserted_apart(batch))

    def _inserted_apart(self, batch: TableBatch) -> Inserted:
        written = {name for placed in batch.deltas for name, _ in placed.delta.columns}
        self._tables.prepare(batch.table, batch.schema, written)
        with collector_paused():
            try:
                return self._transactions.run(partial(self._rows_first, batch, alone=False))
            except Contention:
                return self._transactions.run(partial(self._rows_first, batch, alone=True))

    def _rows_first(
        self, batch: TableBatch, cursor: Cursor, ledger: Ledger, *, alone: bool
    ) -> Inserted:
        """Write rows, then commit them under the table's lock.

        Raises:
            Contention: there are dead letters, and others may write some.
        """
        table = batch.table
        if alone:
            ledger.lock_mark(table)
        changed = merged(batch.deltas, partial(ledger.states, table))
        has_letters = not alone and bool(ledger.dead_letters(table))
        refused = () if has_letters else self._tables.save(cursor, ledger, table, changed)
        if has_letters or (refused and not alone):
            raise Contention(f"rows of {table} are refused: one writer at a time")
        records = encode_records(delta for _, delta in batch.deltas)  # before others have to wait
        last = max(ledger.lock_mark(table) + 1, batch.last)
        if records:
            ledger.add_commits(table, [(last, records)])
        ledger.save_mark(table, last)
        if old := old_until(last, self._history_ms):
            ledger.forget_oldest(table, old, COMMITS_FORGOTTEN + len(batch.deltas))
        return Inserted(len(batch.deltas), len(changed), refused)

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            self._tables.forget()  # another writer may have changed them
            return Err(error)
