"""`DatabaseAdapter`, `Materialisable` and `Fillable` on tables that have heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from lakesync.adapters.batches import delta_page, deltas_behind, row_page, values_of
from lakesync.adapters.database import check_history
from lakesync.adapters.headed import definition_of, forgetting, letters
from lakesync.core.merge import EMPTY
from lakesync.errors import AdapterTimedOut, Contention, LakeSyncError, NotFound
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.database import (
        DeadLetter,
        DeltaPage,
        Inserted,
        Position,
        RowPage,
        TableBatch,
    )
    from lakesync.adapters.headed import HeadedTables
    from lakesync.adapters.objects.heads import Head
    from lakesync.adapters.row_images import RowImages
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result

T = TypeVar("T")

ATTEMPTS_MAX: Final = 5
"""How often something is done again because another writer was first."""


class HeadedDatabase:
    """One gateway's deltas and rows. Not for several threads at once.

    Args:
        tables: what they are kept in.
    """

    def __init__(self, tables: HeadedTables) -> None:
        self._tables = tables

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Note a table's columns; see `DatabaseAdapter`."""
        return self._answer(lambda: self._tables.define(schema))

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch; see `DatabaseAdapter`."""
        return self._answer(lambda: self._tables.insert(batch))

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows, and remove others; see `Fillable`."""
        return self._answer(lambda: self._tables.put(images))

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return a table's mark; see `DatabaseAdapter`."""
        return self._answer(lambda: self._tables.head(table).mark)

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's history behind a position; see `DatabaseAdapter`."""

        def work() -> DeltaPage:
            head = self._tables.head(table)
            check_history(table, since, head.forgotten)
            commits = partial(self._tables.files(table).commits, head)
            return delta_page(deltas_behind(since, deltas_max + 1, commits), since, deltas_max)

        return self._answer(work)

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Return one row; see `DatabaseAdapter`."""

        def work() -> Mapping[str, Any] | None:
            head = self._tables.head(table)
            state = self._tables.files(table).states(head, [row_id]).get(row_id, EMPTY)
            return values_of(state, definition_of(table, head).schema)

        return self._answer(work)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables with their schemas; see `DatabaseAdapter`."""
        return self._answer(self._tables.schemas)

    def answers(self) -> Result[None, LakeSyncError]:
        """Ask for the tables, and create nothing; see `DestinationDatabase`."""
        tables = self.tables()
        return tables if isinstance(tables, Err) else Ok(None)

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Return a table's rows behind a row id; see `DatabaseAdapter`."""

        def work() -> RowPage:
            head = self._tables.head(table)
            states = self._tables.files(table).states_after(head, row_id, rows_max + 1)
            return row_page(states, rows_max)

        return self._answer(work)

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Return some rows; see `DatabaseAdapter`."""
        return self._answer(
            lambda: self._tables.files(table).states(self._tables.head(table), row_ids)
        )

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget a table's deltas; see `DatabaseAdapter`."""

        def forgotten(head: Head) -> Head:
            return forgetting(head, max(head.forgotten, min(until, head.mark)))

        return self._answer(lambda: self._tables.move(table, forgotten))

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Reset a table's mark and history, so that it is filled again; see `Fillable`."""

        def begun(head: Head) -> Head:
            return replace(forgetting(head, max(head.forgotten, head.mark)), mark=0)

        return self._answer(lambda: self._tables.move(table, begun))

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Write every row of a table anew; see `Materialisable`."""
        if table not in self.tables().unwrap_or({}):
            return Err(NotFound(f"there is no table {table} here"))
        return self._answer(lambda: self._tables.rewrite(table))

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return the rows that a reader does not see; see `Materialisable`."""
        return self._answer(lambda: letters(table, self._tables.head(table)))

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Try again the rows that are refused; see `Fillable`."""
        return self._answer(lambda: letters(table, self._tables.retry(table)))

    def close(self) -> None:
        """Forget what was read."""
        self._tables.forget()

    def __enter__(self) -> Self:
        """Use the adapter, and close it in the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        """Do something again where another writer came between: he wrote, or removed a file."""
        last = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                return _answered(work)
            except (Contention, NotFound) as error:
                last = error.message
        return Err(
            AdapterTimedOut(
                f"in {ATTEMPTS_MAX} attempts no write was known to succeed; repeat the operation; "
                f"the last error: {last}"
            )
        )


def _answered(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except (Contention, NotFound):
        raise
    except LakeSyncError as error:
        return Err(error)
