"""`DatabaseAdapter` and `Materialisable` for any SQL database that has a `Dialect`.

A batch is one transaction. It locks the table's mark, so that one writer at a time merges a table
and sees the effects of the one before. It merges the deltas of each row by `core.merge`, and writes
history, rows, the table to query and the mark. A late writer finds the mark ahead, and skips the
batch.

Statements for a batch are constant: none is run for each row.

Several concurrent writers of one table, each with rows that no other writes, write them without the
table's lock; only the history, which has an order, and the mark need it. If rows are refused, or
were before, one writer runs at a time, as with any batch: dead letters belong to the whole table.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from lakesync.adapters.database import (
    DeltaPage,
    Inserted,
    RowPage,
    collector_paused,
    delta_page,
    merged,
    merged_images,
    missing_batch,
    old_until,
    parts,
    row_page,
    values_of,
)
from lakesync.adapters.sql.ledger import NO_ROWS, Transactions
from lakesync.adapters.sql.query_tables import QueryTables
from lakesync.core.merge import EMPTY
from lakesync.errors import Contention, LakeSyncError, NotFound
from lakesync.result import Err, Ok
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.database import DeadLetter, PlacedDelta, Position, RowImages, TableBatch
    from lakesync.adapters.sql.ledger import Ledger
    from lakesync.adapters.sql.standard import Cursor, Dialect
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result

# --- writers side by side -------------------------------------------------------------------------


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


T = TypeVar("T")

DELTAS_MAX: Final = 20_000
"""Deltas in one transaction, unless one commit has more: bounds memory and how long a table is
locked. A larger batch takes several transactions, each with its mark."""


class SqlAdapter(WritesSideBySide):
    """One gateway's deltas and rows in one SQL database. Not for several threads at once.

    Args:
        dialect: the database, and how to connect to it.
        gateway: the gateway's id.
        history_ms: how long history is kept, counted back from a batch, which forgets what is
            older; None keeps all, as an archive needs.
    """

    def __init__(self, dialect: Dialect, gateway: str, *, history_ms: int | None = None) -> None:
        transactions = Transactions(dialect, gateway)
        super().__init__(QueryTables(dialect, gateway, transactions), transactions, history_ms)

    # --- what a database adapter does -------------------------------------------------------------

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Create or extend the table to query; see `DatabaseAdapter`."""
        return self._answer(lambda: self._tables.prepare(schema.table, schema, ()))

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch; see `DatabaseAdapter`."""
        return self._answer(lambda: self._insert(batch))

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows, and remove others; see `Fillable`."""
        return self._answer(lambda: self._put(images))

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return a table's mark; see `DatabaseAdapter`."""
        return self._read(lambda ledger: ledger.mark(table))

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's history behind a position; see `DatabaseAdapter`."""

        def work(ledger: Ledger) -> DeltaPage:
            return delta_page(ledger.deltas(table, since, deltas_max + 1), since, deltas_max)

        return self._read(work)

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Return one row; see `DatabaseAdapter`."""

        def work(ledger: Ledger) -> Mapping[str, Any] | None:
            state = ledger.states(table, [row_id]).get(row_id, EMPTY)
            return values_of(state, ledger.definition(table).schema)

        return self._read(work)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables with their schemas; see `DatabaseAdapter`."""
        return self._read(lambda ledger: ledger.schemas())

    def answers(self) -> Result[None, LakeSyncError]:
        """Connect, and create nothing; see `DestinationDatabase`."""

        def asked(cursor: Cursor, _: Ledger) -> None:
            cursor.execute("SELECT 1")

        return self._answer(lambda: self._transactions.run(asked))

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Return a table's rows behind a row id; see `DatabaseAdapter`."""

        def work(ledger: Ledger) -> RowPage:
            states = ledger.states_after(table, row_id.encode(), rows_max + 1)
            return row_page(states, rows_max)

        return self._read(work)

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Return some rows; see `DatabaseAdapter`."""
        return self._read(lambda ledger: ledger.states(table, row_ids))

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget a table's deltas; see `DatabaseAdapter`."""
        return self._read(lambda ledger: ledger.forget_commits(table, until))

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Reset a table's mark and history, so that it is filled again; see `Fillable`."""

        def work(ledger: Ledger) -> None:
            ledger.forget_commits(table, ledger.lock_mark(table))
            ledger.save_mark(table, 0)

        return self._read(work)

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Rewrite every row of a table; see `Materialisable`."""
        if table not in self.tables().unwrap_or({}):
            return Err(NotFound(f"there is no table {table} in this database"))
        return self._answer(lambda: self._tables.rewrite(table, always=True))

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return the rows that the database refused; see `Materialisable`."""
        return self._read(lambda ledger: ledger.dead_letters(table))

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Try again the rows that the table to query lacks; see `Fillable`."""

        def work(cursor: Cursor, ledger: Ledger) -> tuple[DeadLetter, ...]:
            ledger.lock_mark(table)
            return self._tables.write(cursor, ledger, table, NO_ROWS)

        def retry() -> tuple[DeadLetter, ...]:
            self._tables.prepare(table, None, ())
            return self._transactions.run(work)

        return self._answer(retry)

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        self._tables.forget()
        self._transactions.close()

    def __enter__(self) -> Self:
        """Return the adapter, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a batch ----------------------------------------------------------------------------------

    def _insert(self, batch: TableBatch) -> Inserted:
        written = {name for placed in batch.deltas for name, _ in placed.delta.columns}
        self._tables.prepare(batch.table, batch.schema, written)
        deltas, rows, dead = 0, 0, {}
        for part, last in parts(batch, DELTAS_MAX):
            with collector_paused():
                inserted = self._transactions.run(partial(self._insert_part, batch, part, last))
            deltas += inserted.deltas
            rows += inserted.rows
            dead = {letter.row_id: letter for letter in inserted.dead_letters}
        return Inserted(deltas, rows, tuple(dead.values()))

    def _insert_part(
        self,
        batch: TableBatch,
        part: Sequence[PlacedDelta],
        last: Stamp,
        cursor: Cursor,
        ledger: Ledger,
    ) -> Inserted:
        mark = ledger.lock_mark(batch.table)
        if mark >= last:
            return Inserted(dead_letters=ledger.dead_letters(batch.table))
        if mark < batch.after:
            raise missing_batch(batch, mark)
        fresh = [placed for placed in part if placed.position.commit > mark]
        changed = merged(fresh, partial(ledger.states, batch.table))
        refused = self._tables.save(cursor, ledger, batch.table, changed, fresh)
        ledger.save_mark(batch.table, last)
        if old := old_until(last, self._history_ms):
            ledger.forget_oldest(batch.table, old, COMMITS_FORGOTTEN + len(fresh))
        return Inserted(len(fresh), len(changed), refused)

    def _put(self, images: RowImages) -> Inserted:
        written = {name for state in images.rows.values() if state for name in state.columns}
        self._tables.prepare(images.table, images.schema, written)
        with collector_paused():
            return self._transactions.run(partial(self._put_rows, images))

    def _put_rows(self, images: RowImages, cursor: Cursor, ledger: Ledger) -> Inserted:
        table, mark = images.table, ledger.lock_mark(images.table)
        if mark >= images.last:
            return Inserted(dead_letters=ledger.dead_letters(table))
        if mark < images.after:
            raise missing_batch(images, mark)
        changed, gone = merged_images(images, ledger.states(table, list(images.rows)))
        self._tables.remove(cursor, ledger, table, gone)
        refused = self._tables.save(cursor, ledger, table, changed)
        if images.is_last:
            ledger.save_mark(table, images.last)
            ledger.forget_commits(table, images.last)
        return Inserted(0, len(changed) + len(gone), refused)

    def _read(self, work: Callable[[Ledger], T]) -> Result[T, LakeSyncError]:
        """Run work with the ledger, which is created if it does not exist."""

        def read(cursor: Cursor, ledger: Ledger) -> T:
            self._tables.ensure_ledger(cursor)
            return work(ledger)

        return self._answer(lambda: self._transactions.run(read))
