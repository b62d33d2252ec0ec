"""Interfaces of databases as source and destination of deltas, and their data types.

`DatabaseAdapter` keeps a gateway's deltas and the rows they merge to; `Materialisable` keeps tables
beside them that anybody can query; `Fillable` takes rows in place of deltas, to fill a table, and
for rows that newly pass a filter; `HasSnapshots` has tables that others write, which are read by
their snapshots. Your own adapter must pass `lakesync.testing.database_contract`,
`materialisable_contract` and `fillable_contract`.
Laws P1-P13: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from lakesync.core.clock import stamp
from lakesync.core.delta import parse
from lakesync.core.merge import EMPTY, as_read, fold, join, newer_than, view
from lakesync.errors import Conflict, ConstraintViolated, CursorExpired
from lakesync.result import Ok
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

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


class Continues(Protocol):
    """A batch that continues a table from a mark."""

    @property
    def table(self) -> str:
        """The table's name."""
        ...

    @property
    def after(self) -> Stamp:
        """The mark that the table must have."""
        ...


def missing_batch(batch: Continues, mark: Stamp) -> Conflict:
    """Return the error for a batch whose predecessor was not inserted."""
    return Conflict(
        f"table {batch.table} has taken its batches up to {mark}, and this one begins at "
        f"{batch.after}; insert those between them first, or fill the destination anew"
    )


def old_until(last: Stamp, history_ms: int | None) -> Stamp:
    """Return the stamp up to which history is too old to keep, as of a commit; 0 if none is."""
    return 0 if history_ms is None else max(0, last - stamp(history_ms))


def check_history(table: str, since: Position, forgotten: Stamp) -> None:
    """Refuse to read behind a position that the history no longer reaches.

    The size of the last forgotten commit is unknown, so a reader inside it lacks the rest.

    Raises:
        CursorExpired: the history begins after the position.
    """
    if since < Position(forgotten, ORDINAL_END) and forgotten:
        raise CursorExpired(
            f"the history of {table} begins behind {forgotten}; read its rows, then its history"
        )


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
        """Do nothing; see `Materialisable`."""
        del table
        return Ok(0)

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return none."""
        del table
        return Ok(())

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return none; see `Fillable`."""
        return self.dead_letters(table)


def merged_images(
    images: RowImages, stored: Mapping[str, RowState]
) -> tuple[dict[str, RowState], list[str]]:
    """Return the states that rows get from images of them, and the rows to be removed.

    Args:
        images: the current rows.
        stored: the states of those that are stored.
    """
    changed: dict[str, RowState] = {}
    for row_id, state in images.rows.items():
        before = stored.get(row_id)
        if state is None or (before is None and view(state) is None):
            continue
        after = join(newer_than(before, images.horizon) if before else EMPTY, state)
        if after != before:
            changed[row_id] = after
    gone = [row_id for row_id, state in images.rows.items() if state is None and row_id in stored]
    return changed, gone


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


# --- what adapters share: batches cut at commits and merged, pages of history ---------------------


TABLE_DEAD_LETTERS_MAX: Final = 1_000
"""Refused rows that one table of a destination may have; with more, the table is at fault."""


def parts(batch: TableBatch, deltas_max: int) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Cut a batch at commit boundaries; each part comes with the mark that it leads to."""
    part: list[PlacedDelta] = []
    for _, commit in groupby(batch.deltas, key=lambda placed: placed.position.commit):
        more = list(commit)
        if part and len(part) + len(more) > deltas_max:
            yield part, part[-1].position.commit
            part = []
        part += more
    yield part, batch.last


def merged(
    deltas: Iterable[PlacedDelta], stored: Callable[[list[str]], Mapping[str, RowState]]
) -> dict[str, RowState]:
    """Return the new states of the rows that deltas change.

    Args:
        deltas: in commit order.
        stored: gives the states of the rows that are stored.
    """
    by_row: dict[str, list[Any]] = {}
    for _, delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    before = stored(list(by_row))
    folded = {
        row_id: fold(changes, before.get(row_id, EMPTY)) for row_id, changes in by_row.items()
    }
    return {row: state for row, state in folded.items() if state is not before.get(row, EMPTY)}


def values_of(state: RowState, schema: TableSchema | None = None) -> dict[str, Any] | None:
    """Return a row's values as Python objects; None if the table has no such row."""
    values = view(as_read(state, delete_wins=bool(schema and schema.delete_wins)))
    return None if values is None else {name: parse(raw) for name, raw in values.items()}


def commits_of(deltas: Iterable[PlacedDelta]) -> list[tuple[Stamp, bytes]]:
    """Return whole commits in commit order, each with its deltas as the history keeps them."""
    return [
        (commit, encode_records(delta for _, delta in placed))
        for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit)
    ]


def deltas_behind(
    since: Position,
    deltas_max: int,
    commits_after: Callable[[Stamp], Sequence[tuple[Stamp, bytes]]],
) -> Iterator[PlacedDelta]:
    """Yield deltas behind a position, in order: at least ``deltas_max``, or all of them.

    Args:
        since: the position.
        deltas_max: when to stop reading.
        commits_after: returns the next commits behind a stamp with their records; none at the end.
    """
    after, count = since.commit - 1, 0
    while count < deltas_max:
        commits = commits_after(after)
        if not commits:
            return
        for commit, records in commits:
            for place, delta in enumerate(decode_records(bytes(records))):
                if (commit, place) > since:
                    count += 1
                    yield PlacedDelta(Position(commit, place), delta)
        after = commits[-1][0]


def check_refused(
    table: str, reasons: Collection[str], *, mend: str = "the schema or the rows"
) -> None:
    """Check that not too many rows of a table are refused.

    Args:
        table: its name.
        reasons: why each of them is refused.
        mend: what must be repaired then, for the message.

    Raises:
        ConstraintViolated: they are too many.
    """
    if len(reasons) > TABLE_DEAD_LETTERS_MAX:
        raise ConstraintViolated(
            f"more than {TABLE_DEAD_LETTERS_MAX} rows of {table} were refused, the first because "
            f"{next(iter(reasons))}; mend {mend}, then repeat the operation"
        )


def delta_page(deltas: Iterable[PlacedDelta], since: Position, deltas_max: int) -> DeltaPage:
    """Get the first of what lies behind a position; reads one more, to tell whether there are."""
    read = tuple(islice(deltas, deltas_max + 1))
    page, following = read[:deltas_max], read[deltas_max:]
    if page:
        commit, ordinal = page[-1].position
        goes_on = bool(following) and following[0].position.commit == commit
        since = Position(commit, ordinal if goes_on else ORDINAL_END)
    return DeltaPage(page, since, bool(following))


def row_page(states: Mapping[str, RowState], rows_max: int) -> RowPage:
    """Return a page of rows; one row more than wanted shows that there are more."""
    return RowPage(dict(islice(states.items(), rows_max)), len(states) > rows_max)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector, which takes a third of the time with a batch's many tuples.

    For work with bounded memory; the collector runs afterwards. May be nested.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
