"""The tables to query of one gateway: their definitions, and their rows.

Such a table has the synced columns of one table, in their types, for anybody to read. Its rows are
written from row states, so writing them again is always correct. Only the row that the database
refuses becomes a dead letter; the others are written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from lakesync.adapters.database import TABLE_DEAD_LETTERS_MAX, DeadLetter, check_refused, commits_of
from lakesync.adapters.sql.ledger import (
    DELETED_AT,
    EPOCH,
    PROPS,
    SYNCED_AT,
    UNTYPED,
    Converted,
    Row,
    RowConverter,
    create_ledger,
    digested,
    sql_name,
)
from lakesync.adapters.sql.standard import STAGE, fill_stage
from lakesync.core.column_types import precision_scale
from lakesync.core.names import folded
from lakesync.core.schema import ROW_ID
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.ledger import Definition, Ledger, Transactions
    from lakesync.adapters.sql.standard import Cursor, Dialect
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

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
        rows, after = 0, b""
        while True:

            def page(cursor: Cursor, ledger: Ledger, after: bytes = after) -> list[str]:
                ledger.lock_mark(table)
                states = ledger.states_after(table, after, ROWS_PAGE)
                self.write(cursor, ledger, table, self._tables[table].convert(states))
                return list(states)

            row_ids = self._transactions.run(page)
            if not row_ids:
                return rows
            rows, after = rows + len(row_ids), row_ids[-1].encode()

    def _check_owner(self, ledger: Ledger, table: str, destination: str) -> None:
        if ledger.owner(destination) not in {None, (self._gateway, table)}:
            raise SchemaMismatch(
                f"{destination} holds the rows of another table; name one of its own for {table} "
                "with sourceTable in the schema",
                field="sourceTable",
            )

    def remove(self, cursor: Cursor, ledger: Ledger, table: str, row_ids: Sequence[str]) -> None:
        """Remove rows for good, from the ledger too."""
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
        """Return the SQL type of each column."""
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
        """Remove rows, whether deleted rows are kept or not."""
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
