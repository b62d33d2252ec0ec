"""The tables to query of one gateway: their definitions, and their rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from lakesync.adapters.batches import commits_of
from lakesync.adapters.sql.conversion import Converted
from lakesync.adapters.sql.destination_table import DestinationTable
from lakesync.adapters.sql.ledger_tables import create_ledger
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.adapters.database import DeadLetter, PlacedDelta
    from lakesync.adapters.sql.dialect import Cursor, Dialect
    from lakesync.adapters.sql.ledger import Ledger
    from lakesync.adapters.sql.transactions import Transactions
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
