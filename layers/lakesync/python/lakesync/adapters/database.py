"""Interfaces of databases as source and destination of deltas, and their data types.

`DatabaseAdapter` keeps a gateway's deltas and the rows they merge to; `Materialisable` keeps tables
beside them that anybody can query; `Fillable` takes rows in place of deltas, to fill a table, and
for rows that newly pass a filter; `HasSnapshots` has tables that others write, which are read by
their snapshots. Your own adapter must pass `lakesync.testing.database_contract`,
`materialisable_contract` and `fillable_contract`.
Laws P1-P13: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result

HISTORY_MS: Final = 35 * 86_400_000
"""How long a deployed destination keeps its history: a monthly reader can still continue."""


ORDINAL_END: Final = (1 << 32) - 2
"""The ordinal of a position behind a whole commit: the next delta belongs to another commit."""


class Position(NamedTuple):
    """A delta's position in its table's history: its commit, and its place in the commit."""

    commit: Stamp = 0
    ordinal: int = -1


class PlacedDelta(NamedTuple):
    """A delta with its position."""

    position: Position
    delta: Delta


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Deltas of one table in commit order: all in ``(after, last]``."""

    table: str
    after: Stamp
    """The end of the table's previous batch; 0 if there was none."""
    last: Stamp
    deltas: Sequence[PlacedDelta]
    schema: TableSchema | None = None
    """The table's schema when the batch was made, if it has one."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that the database refused: its state is kept, but its table lacks that state.

    It is tried again with each batch of its table, until it fits or is deleted.
    """

    table: str
    row_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of a batch."""

    deltas: int = 0
    """Deltas that were new."""
    rows: int = 0
    """Rows that they changed."""
    dead_letters: tuple[DeadLetter, ...] = ()
    """Rows of the batch that were refused; all other rows are written."""


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
    """The position from which to read next; with `ORDINAL_END` at the end of a commit."""
    has_more: bool


@runtime_checkable
class DatabaseAdapter(Protocol):
    """A database that keeps one gateway's deltas, and the rows they merge to.

    It may forget old history when it applies a batch; a reader that needs it gets an error. Every
    operation is atomic, may be repeated after any error, and gives a `Result`. Errors are
    `lakesync.errors.AdapterFailed` and its subclasses, besides those that are named.
    """

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Adapt the table to a schema: create it, add its columns, widen them.

        Errors: SchemaMismatch, if a type cannot become the declared one.
        """
        ...

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Apply a batch: its deltas, the rows they change and its mark, in one transaction.

        Commits up to the mark are skipped, so a batch may be repeated, or overlap the one before.

        Errors: Conflict, if a batch before this one is missing.
        """
        ...

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return a table's mark: the commit up to which it has applied batches; 0 at first."""
        ...

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's deltas behind a position, in commit order.

        Errors: CursorExpired, if the history does not reach back so far.
        """
        ...

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Return a row as `core.merge` makes it from all inserted deltas; None if there is none."""
        ...

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables that have received a batch or a schema, each with its newest schema."""
        ...

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Return a table's rows behind a row id, or from the first with an empty one."""
        ...

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Return some rows, deleted ones too; missing ones are left out."""
        ...

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget a table's deltas up to a commit; the merged rows and the mark stay."""
        ...

    def close(self) -> None:
        """Close connections; the adapter may be used again."""
        ...


@runtime_checkable
class SideBySide(DatabaseAdapter, Protocol):
    """A `DatabaseAdapter` whose tables several processes read and write at once."""

    def row_ahead(self, table: str, row_id: str, rows: int) -> Result[str, LakeSyncError]:
        """Return the id of the row ``rows`` rows behind another; empty if there are fewer.

        The rows are not read.
        """
        ...

    def insert_apart(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Apply deltas of rows that no other writer changes meanwhile, as one commit.

        Its stamp is above the table's mark at that time, and not below ``batch.last``. The batch's
        positions and its beginning are ignored.
        """
        ...


@runtime_checkable
class Materialisable(Protocol):
    """A `DatabaseAdapter` that keeps a table to query beside each one that it merges.

    It has the synced columns in their types; ``row_id``; ``props``, a JSON object that is yours
    and that sync never changes; ``synced_at``; and ``deleted_at``, if deleted rows are kept.
    """

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Rewrite every row of a table from the merged rows; return their number."""
        ...

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return the rows of a table that its destination refuses at the moment."""
        ...


# --- rows in place of deltas ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowImages:
    """Current rows of one table, in place of the deltas that led to them."""

    table: str
    after: Stamp
    """How far the table must have come already; 0 for any."""
    last: Stamp
    """The rows include all commits up to here, and maybe later ones; a table whose mark is here
    takes none of them."""
    rows: Mapping[str, RowState | None]
    """By id; None where what is there of the row is to be removed."""
    schema: TableSchema | None = None
    is_last: bool = True
    """Whether the mark moves to ``last``; else more rows follow."""
    horizon: Stamp = 0
    """Up to here the rows may lack deletions that were forgotten: of what is stored up to here,
    only what a row still has is certain (`lakesync.core.merge`)."""


@runtime_checkable
class Fillable(Protocol):
    """A `DatabaseAdapter` that also takes rows in place of deltas: the target of deliveries."""

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows into the stored ones and remove others, in one transaction with the mark.

        A deleted row is merged only if it was stored before. The history up to the mark is
        forgotten, as it does not contain the deltas behind these rows. Once the mark is at
        ``last``, the call has no effect.

        Errors: Conflict, if the table has not come as far as ``after``.
        """
        ...

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Reset a table: its rows stay, its history and mark are removed.

        Filling it anew begins with this.
        """
        ...

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Try again the rows that are refused; returns what is refused still."""
        ...


@runtime_checkable
class DestinationDatabase(DatabaseAdapter, Materialisable, Fillable, Protocol):
    """What batches are delivered to: all of the above."""

    def answers(self) -> Result[None, LakeSyncError]:
        """Have the database answer with these credentials; nothing is created."""
        ...


class NothingToQuery:
    """The part of a `DestinationDatabase` that concerns tables to query, of one that has none.

    It keeps row states alone, so that it refuses no row.
    """

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        del table
        return Ok(0)

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        del table
        return Ok(())

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        return self.dead_letters(table)


# --- tables of other writers, by their snapshots --------------------------------------------------


ALL: Final = "all"
"""All rows of a snapshot."""
ADDED: Final = "added"
"""A snapshot that added rows, and did nothing else."""
SAME: Final = "same"
"""A snapshot that wrote the same rows otherwise, as compaction does."""
CHANGED: Final = "changed"
"""Anything from one snapshot to another."""
GONE: Final = "gone"
"""What was brought, and is not in a snapshot."""


class SnapshotStep(NamedTuple):
    """From one snapshot to another."""

    before: int
    """Its number; 0 for none."""
    after: int
    at_ms: int
    """When the later one was committed."""
    kind: str


class NamedColumn(NamedTuple):
    """A column, with its type as LakeSync has types."""

    name: str
    type: str
    nullable: bool


class SnapshotTable(Protocol):
    """A table, as its snapshots tell it."""

    def columns(self) -> Sequence[NamedColumn]:
        """Return its columns, as they are now."""
        ...

    def steps(self, since: int) -> Sequence[SnapshotStep]:
        """Return the steps from a snapshot to the newest, in order; 0 for all rows of the newest.

        Raises:
            CursorExpired: that snapshot no longer exists.
        """
        ...

    def rows(
        self, step: SnapshotStep, names: Sequence[str], *, left: bool = False, skipped: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Return rows of the files that a step adds; or, with ``left``, that it removes.

        Args:
            step: the step.
            names: the columns.
            left: whether to read the removed files.
            skipped: how many of the first rows are left out.

        Raises:
            CursorExpired: a snapshot, or a file of it, no longer exists.
        """
        ...

    def count(self, step: SnapshotStep, *, left: bool = False) -> int:
        """Count those rows, deleted ones of their files too."""
        ...


@runtime_checkable
class HasSnapshots(Protocol):
    """A database in which others may have tables that are told by snapshots."""

    def snapshots_of(self, name: str) -> SnapshotTable:
        """Return a table by its whole name; it is looked at when it is asked."""
        ...
