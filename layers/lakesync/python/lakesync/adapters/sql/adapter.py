"""`DatabaseAdapter` and `Materialisable` for any SQL database that has a `Dialect`.

A batch is one transaction. It locks the table's mark, so that one writer at a time merges a table
and sees the effects of the one before. It merges the deltas of each row by `core.merge`, and writes
history, rows, the table to query and the mark. A late writer finds the mark ahead, and skips the
batch.

Statements for a batch are constant: none is run for each row.

Several concurrent writers of one table, each with rows that no other writes, write them without the
table's lock; only the history, which has an order, and the mark need it. If rows are refused, or
were before, one writer runs at a time, as with any batch: dead letters belong to the whole table.

A table to query has the synced columns of one table, in their types, for anybody to read. Its rows
are written from row states, so writing them again is always correct. Only the row that the database
refuses becomes a dead letter; the others are written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.adapters.database import DeadLetter, Inserted
from lakesync.adapters.ledger_database import (
    TABLE_DEAD_LETTERS_MAX,
    LedgerDatabase,
    check_refused,
    collector_paused,
    commits_of,
    merged,
    merged_images,
    missing_batch,
    old_until,
)
from lakesync.adapters.sql.ledger import (
    DELETED_AT,
    EPOCH,
    NO_ROWS,
    PROPS,
    SYNCED_AT,
    UNTYPED,
    Converted,
    Row,
    RowConverter,
    Transactions,
    create_ledger,
    digested,
    sql_name,
)
from lakesync.adapters.sql.standard import STAGE, fill_stage
from lakesync.core.column_types import precision_scale
from lakesync.core.names import folded
from lakesync.core.schema import ROW_ID
from lakesync.errors import Contention, LakeSyncError, SchemaMismatch
from lakesync.result import Err, Ok
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta, RowImages, TableBatch
    from lakesync.adapters.sql.ledger import Definition, Ledger
    from lakesync.adapters.sql.standard import Cursor, Dialect
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result

# --- tables to query ------------------------------------------------------------------------------


ROWS_PAGE: Final = 5_000
"""Rows that are written at a time when a table is rewritten."""


class QueryTables:
    """The tables to query of one gateway. Definitions are cached."""

    def __init__(self, dialect: Dialect, gateway: str, transactions: Transactions) -> None:
        self._dialect = dialect
        self._gateway = gateway
        self._transactions = transactions
        self._has_ledger = False
        self._tables: dict[str, DestinationTable] = {}

    def forget(self) -> None:
        """Drop the cached definitions: a change may have been rolled back with its transaction."""
        self._has_ledger = False
        self._tables.clear()

    def ensure_ledger(self, cursor: Cursor) -> None:
        """Create the ledger, unless this object has done so already."""
        if not self._has_ledger:
            with self._dialect.definitions_locked(cursor):
                create_ledger(self._dialect, cursor)
            self._has_ledger = True

    def prepare(self, table: str, schema: TableSchema | None, written: Iterable[str]) -> None:
        """Create the table to query, or add missing columns; costs nothing if it is complete."""
        known = self._tables.get(table)
        if known is None or not known.definition.covers(schema, written):
            self.rewrite(table, schema, written)

    def rewrite(
        self,
        table: str,
        schema: TableSchema | None = None,
        written: Iterable[str] = (),
        *,
        always: bool = False,
    ) -> int:
        """Change the table to query to its definition; rewrite its rows if they do not match it.

        The definition is stored last, so an interrupted change is repeated.
        """

        def define(cursor: Cursor, ledger: Ledger) -> bool:
            self.ensure_ledger(cursor)
            with self._dialect.definitions_locked(cursor):
                current = ledger.definition(table)
                wanted = current.evolved(schema, written)
                self._check_owner(ledger, table, wanted.destination)
                destination = DestinationTable(self._dialect, wanted)
                is_unwritten = destination.create(cursor, current) or not wanted.reads_as(current)
                if not is_unwritten:
                    ledger.save_definition(wanted)
            self._tables[table] = destination
            return is_unwritten

        rows = 0
        if self._transactions.run(define) or always:
            rows = self._rows_rewritten(table)
            self._transactions.run(
                lambda _, ledger: ledger.save_definition(self._tables[table].definition)
            )
        return rows

    def _rows_rewritten(self, table: str) -> int:
        rows, after = 0, ""
        while True:

            def page(cursor: Cursor, ledger: Ledger, after: str = after) -> list[str]:
                ledger.lock_mark(table)
                states = ledger.states_after(table, after, ROWS_PAGE)
                self.write(cursor, ledger, table, self._tables[table].convert(states))
                return list(states)

            row_ids = self._transactions.run(page)
            if not row_ids:
                return rows
            rows, after = rows + len(row_ids), row_ids[-1]

    def _check_owner(self, ledger: Ledger, table: str, destination: str) -> None:
        if ledger.owner(destination) not in {None, (self._gateway, table)}:
            raise SchemaMismatch(
                f"{destination} holds the rows of another table; name one of its own for {table} "
                "with sourceTable in the schema",
                field="sourceTable",
            )

    def remove(self, cursor: Cursor, ledger: Ledger, table: str, row_ids: Sequence[str]) -> None:
        if row_ids:
            ledger.remove_states(table, row_ids)
            self._tables[table].remove(cursor, row_ids)

    def save(
        self,
        cursor: Cursor,
        ledger: Ledger,
        table: str,
        changed: Mapping[str, RowState],
        history: Iterable[PlacedDelta] = (),
    ) -> tuple[DeadLetter, ...]:
        """Save the states of rows and their history, and write the rows.

        Returns: The rows that are refused now.
        """
        with ThreadPoolExecutor(1) as database:  # while it saves, Python prepares what follows
            saving = database.submit(ledger.saving_states(table, changed))
            converted = self._tables[table].convert(changed)
            commits = commits_of(history)
            saving.result()
        if commits:
            ledger.add_commits(table, commits)
        return self.write(cursor, ledger, table, converted)

    def write(
        self, cursor: Cursor, ledger: Ledger, table: str, converted: Converted
    ) -> tuple[DeadLetter, ...]:
        """Write rows, and retry those that were refused before; returns those refused now."""
        before = ledger.dead_letters(table)
        if before:
            known = {row.row_id for row in converted.rows}
            known |= {letter.row_id for letter in converted.refused}
            again = [letter.row_id for letter in before if letter.row_id not in known]
            more = self._tables[table].convert(ledger.states(table, again) if again else {})
            converted = Converted(
                (*converted.rows, *more.rows), (*converted.refused, *more.refused)
            )
        refused = tuple(self._tables[table].write(cursor, converted))
        if refused != before:
            ledger.save_dead_letters(table, refused)
        return refused


# --- one table ------------------------------------------------------------------------------------


_STAGED_NUMBER: Final = "lakesync_number"
_STAGED_DELETED_AT: Final = "lakesync_deleted_at"
_SPAN: Final = f"s.{_STAGED_NUMBER} >= %s AND s.{_STAGED_NUMBER} < %s"
_DELETED_SPAN: Final = f"{_SPAN} AND s.{_STAGED_DELETED_AT} IS NOT NULL"


class DestinationTable:
    """One table to query, by its definition."""

    def __init__(self, dialect: Dialect, definition: Definition) -> None:
        self._dialect = dialect
        self.definition = definition
        self._columns = definition.stored_columns()
        self._quoted = dialect.quote(definition.destination)
        self.convert = RowConverter(dialect, definition).converted

    # --- definition -------------------------------------------------------------------------------

    def create(self, cursor: Cursor, before: Definition) -> bool:
        """Create the table, or change it from its former definition to the current one.

        Each statement may be repeated.

        Returns: Whether rows must be rewritten: the table or a column was missing, or a column got
            another type.
        """
        there = self._dialect.existing_columns(cursor, self.definition.destination)
        if not there:
            self._create(cursor)
            return bool(before.columns)
        present = {folded(name) for name in there}
        for name, kind in before.stored_columns().items():
            wanted = self.definition.columns[name]
            if wanted == kind or folded(sql_name(name)) not in present:
                continue
            if precision_scale(kind):
                self._widen(cursor, name, wanted)
            else:
                self._alter(cursor, f"DROP COLUMN {self._dialect.quote(sql_name(name))}")
                present.remove(folded(sql_name(name)))
        for name, kind in self._definitions().items():
            if folded(name) not in present:
                column = f"{self._dialect.quote(name)} {kind.removesuffix(' NOT NULL')}"
                self._alter(cursor, f"ADD COLUMN {column}")
        if ROW_ID not in present:
            index = self._dialect.quote(digested(f"{self.definition.destination}.{ROW_ID}"))
            cursor.execute(f"CREATE UNIQUE INDEX {index} ON {self._quoted} ({ROW_ID})", ())
        return any(folded(sql_name(name)) not in present for name in before.stored_columns())

    def _create(self, cursor: Cursor) -> None:
        quote = self._dialect.quote
        lines = [f"{quote(name)} {kind}" for name, kind in self._definitions().items()]
        keys = self.definition.keys
        lines.append(f"PRIMARY KEY ({', '.join(quote(sql_name(key)) for key in keys)})")
        unique = [name for name in (ROW_ID, self.definition.external_id) if name]
        lines += [f"UNIQUE ({quote(sql_name(name))})" for name in unique if (name,) != keys]
        options = self._dialect.updated_options
        cursor.execute(f"CREATE TABLE {self._quoted} ({', '.join(lines)}){options}", ())

    def _widen(self, cursor: Cursor, name: str, type_name: str) -> None:
        kind = self._dialect.column_type(type_name, in_key=name in self.definition.keys)
        column = self._dialect.quote(sql_name(name))
        cursor.execute(self._dialect.changed_type(self._quoted, column, kind), ())

    def _alter(self, cursor: Cursor, change: str) -> None:
        cursor.execute(f"ALTER TABLE {self._quoted} {change}", ())

    def _definitions(self) -> dict[str, str]:
        keys = self.definition.keys
        keyed = {*keys, self.definition.external_id}
        kinds = {ROW_ID: self._dialect.column_type("string", in_key=True)}
        for name, kind in self._columns.items():
            required = " NOT NULL" if name in keys else ""
            sql_type = self._dialect.column_type(kind, in_key=name in keyed)
            kinds[sql_name(name)] = sql_type + required
        props = self._dialect.column_type(UNTYPED, in_key=False)
        return kinds | {
            PROPS: f"{props} DEFAULT ('{{}}')",
            SYNCED_AT: self._dialect.instant_type,
            DELETED_AT: self._dialect.instant_type,
        }

    # --- rows -------------------------------------------------------------------------------------

    def write(self, cursor: Cursor, converted: Converted) -> list[DeadLetter]:
        """Write rows; returns those that are refused, and those that could not be converted."""
        table, rows, refused = self.definition.table, converted.rows, list(converted.refused)
        if rows:
            self._load(cursor, rows)
            has_deleted = any(row.deleted_at is not None for row in rows)
            faults = self._written(cursor, 0, len(rows), has_deleted=has_deleted)
            refused += [DeadLetter(table, rows[at].row_id, reason) for at, reason in faults]
        check_refused(table, [letter.reason for letter in refused], mend="the table")
        return refused

    def remove(self, cursor: Cursor, row_ids: Sequence[str]) -> None:
        nothing = [None] * len(self._columns)
        self._load(cursor, [Row(row_id, EPOCH, nothing) for row_id in row_ids])
        cursor.execute(self._removal(_DELETED_SPAN), (0, len(row_ids)))

    def _removal(self, deleted: str) -> str:
        # Every name is quoted or ours.
        gone = f"SELECT s.{ROW_ID} FROM {STAGE} s WHERE {deleted}"  # noqa: S608
        return f"DELETE FROM {self._quoted} WHERE {ROW_ID} IN ({gone})"  # noqa: S608

    def _load(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        kinds = {
            sql_name(name): self._dialect.column_type(
                "string" if kind == UNTYPED else kind, in_key=False
            )
            for name, kind in self._columns.items()
        }
        key = {_STAGED_NUMBER: "INTEGER", _STAGED_DELETED_AT: self._dialect.instant_type}
        key[ROW_ID] = self._dialect.column_type("string", in_key=True)
        loaded = (
            (number, row.deleted_at, row.row_id, *row.values) for number, row in enumerate(rows)
        )
        fill_stage(self._dialect, cursor, key | kinds, loaded)

    def _written(
        self, cursor: Cursor, start: int, end: int, *, has_deleted: bool
    ) -> list[tuple[int, str]]:
        """Write a range of the staged rows; returns those that are refused, and why.

        A refusal does not name the row, so the range is halved until each refused row is alone.
        """
        cursor.execute("SAVEPOINT lakesync_rows_written", ())
        try:
            for statement in self._statements(has_deleted=has_deleted):
                cursor.execute(statement, (start, end))
        except Exception as exc:
            if not self._dialect.is_row_fault(exc):
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT lakesync_rows_written", ())
            if end - start == 1:
                return [(start, " ".join(str(exc).split()))]
            middle = (start + end) // 2
            faults = self._written(cursor, start, middle, has_deleted=has_deleted)
            if len(faults) <= TABLE_DEAD_LETTERS_MAX:
                faults += self._written(cursor, middle, end, has_deleted=has_deleted)
            return faults
        cursor.execute("RELEASE SAVEPOINT lakesync_rows_written", ())
        return []

    def _statements(self, *, has_deleted: bool) -> Iterable[str]:
        """Yield the statements that write rows from ``%s`` up to before ``%s``."""
        quote = self._dialect.quote
        alive, deleted = f"{_SPAN} AND s.{_STAGED_DELETED_AT} IS NULL", _DELETED_SPAN
        columns = [(ROW_ID, f"s.{ROW_ID}")]
        columns += [
            (quote(sql_name(name)), self._dialect.staged(f"s.{quote(sql_name(name))}", kind))
            for name, kind in self._columns.items()
        ]
        columns += [(SYNCED_AT, "CURRENT_TIMESTAMP"), (DELETED_AT, "NULL")]
        yield from self._dialect.merge(self._quoted, columns, alive)
        if not has_deleted:
            return
        if self.definition.keeps_deleted:
            stamps = [(SYNCED_AT, "CURRENT_TIMESTAMP"), (DELETED_AT, f"s.{_STAGED_DELETED_AT}")]
            yield self._dialect.update(self._quoted, stamps, deleted)
        else:
            yield self._removal(deleted)


# --- the database ---------------------------------------------------------------------------------


COMMITS_FORGOTTEN: Final = 200
"""Old commits that a transaction forgets, in addition to one for each delta that it writes: a long
history shrinks gradually, and faster than it grows."""

T = TypeVar("T")


class SqlAdapter(LedgerDatabase["Ledger"]):
    """One gateway's deltas and rows in one SQL database. Not for several threads at once.

    Args:
        history_ms: how long history is kept, counted back from a batch, which forgets what is
            older; None keeps all, as an archive needs.
    """

    def __init__(self, dialect: Dialect, gateway: str, *, history_ms: int | None = None) -> None:
        self._transactions = Transactions(dialect, gateway)
        self._tables = QueryTables(dialect, gateway, self._transactions)
        self._history_ms = history_ms

    def answers(self) -> Result[None, LakeSyncError]:
        def asked(cursor: Cursor, _: Ledger) -> None:
            cursor.execute("SELECT 1")

        return self._answer(lambda: self._transactions.run(asked))

    def close(self) -> None:
        self._tables.forget()
        self._transactions.close()

    # --- a batch ----------------------------------------------------------------------------------

    def _prepare(self, table: str, schema: TableSchema | None, written: Iterable[str]) -> None:
        self._tables.prepare(table, schema, written)

    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        with collector_paused():
            return self._transactions.run(partial(self._insert_locked, batch, part, last))

    def _insert_locked(
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

    def _put_rows(self, images: RowImages) -> Inserted:
        with collector_paused():
            return self._transactions.run(partial(self._put_locked, images))

    def _put_locked(self, images: RowImages, cursor: Cursor, ledger: Ledger) -> Inserted:
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

    def _rewrite(self, table: str) -> int:
        return self._tables.rewrite(table, always=True)

    def _retry(self, table: str) -> tuple[DeadLetter, ...]:
        def work(cursor: Cursor, ledger: Ledger) -> tuple[DeadLetter, ...]:
            ledger.lock_mark(table)
            return self._tables.write(cursor, ledger, table, NO_ROWS)

        self._tables.prepare(table, None, ())
        return self._transactions.run(work)

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            self._tables.forget()  # another writer may have changed them
            return Err(error)

    def _read(self, work: Callable[[Ledger], T]) -> Result[T, LakeSyncError]:
        """Run work with the ledger, which is created if it does not exist."""

        def read(cursor: Cursor, ledger: Ledger) -> T:
            self._tables.ensure_ledger(cursor)
            return work(ledger)

        return self._answer(lambda: self._transactions.run(read))

    # --- writers side by side ---------------------------------------------------------------------

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
