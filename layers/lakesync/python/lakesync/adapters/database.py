"""Databases as source and destination of deltas: the interfaces, and what passes through them.

`DatabaseAdapter` keeps a gateway's deltas and the rows they merge to; `Materialisable` keeps tables
beside them that anybody can query. An adapter that you write passes
`lakesync.testing.database_contract`, and `materialisable_contract`.
Laws P1-P13: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from lakesync.core.clock import stamp
from lakesync.errors import Conflict, CursorExpired

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


HISTORY_MS: Final = 35 * 86_400_000
"""How long a deployed destination keeps its history: who reads it once a month goes on by it."""


ORDINAL_END: Final = (1 << 32) - 2
"""Of a position behind a whole commit: what follows it, if anything, is of another one."""


class Position(NamedTuple):
    """Where a delta stands in its table's history: its commit, and its place in that."""

    commit: Stamp = 0
    ordinal: int = -1


class PlacedDelta(NamedTuple):
    """A delta, and where it stands."""

    position: Position
    delta: Delta


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Deltas of one table in commit order: all there are in ``(after, last]``."""

    table: str
    after: Stamp
    """Where the table's batch before this one ended; 0 if there was none."""
    last: Stamp
    deltas: Sequence[PlacedDelta]
    schema: TableSchema | None = None
    """The table's schema when the batch was made, if it has one."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that the database refused: what it holds is kept, and its table lacks its last state.

    It is tried again with each batch of its table, until it fits or is deleted.
    """

    table: str
    row_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of a batch."""

    deltas: int = 0
    """Deltas that were new."""
    rows: int = 0
    """Rows that they changed."""
    dead_letters: tuple[DeadLetter, ...] = ()
    """Rows that were refused this time; every other row of the batch is written."""


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some of a table's rows, in the order of their ids' bytes; deleted ones too."""

    rows: Mapping[str, RowState]
    has_more: bool


@dataclass(frozen=True, slots=True)
class DeltaPage:
    """Some of a table's history, in order and without gaps."""

    deltas: tuple[PlacedDelta, ...]
    position: Position
    """What to ask from next; with `ORDINAL_END` where a commit ends."""
    has_more: bool


class DatabaseAdapter(Protocol):
    """A database that keeps one gateway's deltas, and the rows they merge to.

    It may forget what is old of its history, with a batch that it takes; whoever reads it is told.

    Every operation is atomic, may be repeated after any error, and gives a `Result`; its errors are
    `lakesync.errors.AdapterFailed` and what is below it, except where they are named.
    """

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Make the table ready for a schema: create it, add its columns, widen them.

        Errors: SchemaMismatch, if a type cannot become the declared one.
        """
        ...

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch: its deltas, the rows they change and its mark, in one transaction.

        What is marked already is skipped, so a batch may come again, or overlap the one before.

        Errors: Conflict, if a batch before this one is missing.
        """
        ...

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Give the commit stamp up to which a table has taken its batches; 0 before the first."""
        ...

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Give a table's deltas behind a position, in commit order.

        Errors: CursorExpired, if the history does not reach back so far.
        """
        ...

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Give a row as `core.merge` makes it of everything that was inserted; None without one."""
        ...

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Give the tables that took a batch or a schema, each with its newest schema."""
        ...

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Give a table's rows behind a row id, or from the first with an empty one."""
        ...

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Give some rows, deleted ones too; those that are not there are left out."""
        ...

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget a table's deltas up to a commit; what they merged to, and the mark, stay."""
        ...

    def close(self) -> None:
        """Let go of connections; the adapter may be used again."""
        ...


@runtime_checkable
class SideBySide(DatabaseAdapter, Protocol):
    """A `DatabaseAdapter` whose tables are read and written by several at once."""

    def row_ahead(self, table: str, row_id: str, rows: int) -> Result[str, LakeSyncError]:
        """Give the id of the row so many rows behind another, empty if there are fewer.

        None of them is read.
        """
        ...

    def insert_apart(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take deltas of rows that nobody else writes meanwhile, as one commit.

        It is behind all that the table has by then, and not before ``batch.last``; the positions of
        the batch, and where it begins, say nothing.
        """
        ...


class Materialisable(Protocol):
    """A `DatabaseAdapter` that keeps a table to query beside each one that it merges.

    It has the synced columns in their types; ``row_id``; ``props``, a JSON object that is yours
    and that no sync touches; ``synced_at``; and ``deleted_at``, if deleted rows are kept.
    """

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Write every row of a table anew from what was merged; gives how many there are."""
        ...

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Give the rows of a table that its destination refuses at the moment."""
        ...


class Continues(Protocol):
    """What can only be taken once a table has come somewhere."""

    @property
    def table(self) -> str:
        """Which table."""
        ...

    @property
    def after(self) -> Stamp:
        """How far it must have come."""
        ...


def missing_batch(batch: Continues, mark: Stamp) -> Conflict:
    """Give the error for a batch whose predecessor was not inserted."""
    return Conflict(
        f"table {batch.table} has taken its batches up to {mark}, and this one begins at "
        f"{batch.after}; insert those between them first, or fill the destination anew"
    )


def old_until(last: Stamp, history_ms: int | None) -> Stamp:
    """Give up to where history is too old to be kept, as of a commit; 0 if all is kept."""
    return 0 if history_ms is None else max(0, last - stamp(history_ms))


def check_history(table: str, since: Position, forgotten: Stamp) -> None:
    """Refuse to read a history that does not reach back so far.

    Of the last commit that is forgotten nobody knows how much it had: who read a part of it lacks
    the rest.

    Raises:
        CursorExpired: it does not.
    """
    if since < Position(forgotten, ORDINAL_END) and forgotten:
        raise CursorExpired(
            f"the history of {table} begins behind {forgotten}; read its rows, then its history"
        )
