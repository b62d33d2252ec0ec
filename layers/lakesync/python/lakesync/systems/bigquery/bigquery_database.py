"""BigQuery as source and destination, for batches small and large.

`BigQueryAdapter` is `DatabaseAdapter` and `Materialisable`.

BigQuery has no cheap row transactions. So a batch is merged in this process, by `core.merge`, and
written as a whole: one load job puts history, states and values into a stage (a temporary table),
then one script writes all of it and moves the mark, in one transaction. A count of writes is stored
beside the mark. The script checks that the count has not changed since the states were read, and
ends without effect if it has: another writer was first.

The number of statements does not depend on the number of rows.

A large batch (`BulkWrite`) is prepared by many processes. Each reads the states of its part's rows,
merges the part's deltas into them, and loads the result into stages of its own; then one script
writes all stages and moves the mark, under the same check. A stage belongs to one attempt at one
part. A part that is retried, or done twice, loads other stages; unused stages are dropped here, or
removed by BigQuery after a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from lakesync.adapters.database import (
    Inserted,
    PlacedDelta,
    Position,
    delta_page,
    merged,
    merged_images,
    missing_batch,
    parts,
    row_page,
    values_of,
)
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.sql.ledger import from_json
from lakesync.core.merge import EMPTY
from lakesync.errors import AdapterFailed, Contention, LakeSyncError, NotFound
from lakesync.result import Err, Ok
from lakesync.systems.bigquery.bigquery_jobs import bigquery_jobs
from lakesync.systems.bigquery.bigquery_ledger import (
    ATTEMPTS_MAX,
    BigQueryLedger,
    BigQueryTables,
    Stages,
    commit_lines,
    drop_stages,
    few_enough,
    others_first,
    retried,
    row_line,
)
from lakesync.systems.bigquery.bigquery_statements import Move, moved_on
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import DeadLetter, DeltaPage, RowImages, RowPage, TableBatch
    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result
    from lakesync.systems.bigquery.bigquery_jobs import Jobs
    from lakesync.systems.bigquery.bigquery_ledger import Stage

T = TypeVar("T")

DELTAS_MAX: Final = 20_000
"""Deltas in one transaction, unless one commit has more. A larger batch takes several transactions,
each with its mark."""


class BigQueryAdapter:
    """One gateway's deltas and rows in one BigQuery dataset. Not for several threads at once.

    Args:
        jobs: the dataset, and its client.
        gateway: the gateway's id.
        history_ms: how long history is kept, counted back from a batch; the first batch of a day
            forgets what is older. None keeps all.
    """

    def __init__(self, jobs: Jobs, gateway: str, *, history_ms: int | None = None) -> None:
        self._history_ms = history_ms
        self._jobs = jobs
        self._ledger = BigQueryLedger(jobs, gateway)
        self._tables = BigQueryTables(jobs, self._ledger, gateway)
        self._bulk = BulkInsert(jobs, self._ledger, self._tables, gateway, history_ms)

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        """Create or extend the table to query; see `DatabaseAdapter`."""
        made = self._answer(lambda: self._tables.prepare(schema.table, schema, ()))
        return made.map(lambda _: None)

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Apply a batch; see `DatabaseAdapter`."""
        return self._answer(lambda: self._insert(batch))

    def insert_staged(
        self, batch: TableBatch, written: Iterable[str], stage: Callable[[BulkWrite], list[Stage]]
    ) -> Result[Inserted, LakeSyncError]:
        """Apply a batch as `insert_deltas` does, but other processes merge and stage its deltas.

        Args:
            batch: the batch, without its deltas.
            written: the columns that the deltas may have.
            stage: stages the whole write; called again if another writer was first.
        """
        return self._answer(lambda: self._bulk.insert(batch, written, stage))

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        """Merge rows, and remove others; see `Fillable`."""
        return self._answer(lambda: self._put(images))

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return a table's mark; see `DatabaseAdapter`."""
        return self._answer(lambda: self._ledger.marks(table)[0])

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's history behind a position; see `DatabaseAdapter`."""

        def work() -> DeltaPage:
            return delta_page(self._ledger.deltas(table, since, deltas_max + 1), since, deltas_max)

        return self._answer(work)

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        """Return one row; see `DatabaseAdapter`."""

        def work() -> Mapping[str, Any] | None:
            state = self._ledger.states(table, [row_id]).get(row_id, EMPTY)
            return values_of(state, self._ledger.definition(table)[0].schema)

        return self._answer(work)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        """Return the tables with their schemas; see `DatabaseAdapter`."""
        return self._answer(self._ledger.schemas)

    def answers(self) -> Result[None, LakeSyncError]:
        """Ask for the tables, and create nothing; see `DestinationDatabase`."""
        tables = self.tables()
        return tables if isinstance(tables, Err) else Ok(None)

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        """Return a table's rows behind a row id; see `DatabaseAdapter`."""

        def work() -> RowPage:
            states = self._ledger.states_after(table, row_id, rows_max + 1)
            return row_page(states, rows_max)

        return self._answer(work)

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        """Return some rows; see `DatabaseAdapter`."""
        return self._answer(lambda: self._ledger.states(table, row_ids))

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Forget a table's deltas; see `DatabaseAdapter`."""
        return self._answer(lambda: retried(lambda: self._ledger.forget_commits(table, until)))

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        """Reset a table's mark and history, so that it is filled again; see `Fillable`."""
        return self._answer(lambda: retried(lambda: self._ledger.begin_anew(table)))

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        """Rewrite every row of a table; see `Materialisable`."""
        if table not in self.tables().unwrap_or({}):
            return Err(NotFound(f"there is no table {table} in this dataset"))
        return self._answer(lambda: self._tables.prepare(table, None, (), always=True))

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Return the rows that BigQuery refused; see `Materialisable`."""
        return self._answer(lambda: self._ledger.dead_letters(table))

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        """Write refused rows again; see `Fillable`."""

        def retry() -> tuple[DeadLetter, ...]:
            self._tables.prepare(table, None, ())
            return retried(lambda: self._try_again(table))

        return self._answer(retry)

    def close(self) -> None:
        """Close the connections; the next operation opens new ones."""
        self._tables.forget()
        self._jobs.close()

    def __enter__(self) -> Self:
        """Return the adapter, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a batch ----------------------------------------------------------------------------------

    def _insert(self, batch: TableBatch) -> Inserted:
        written = {name for placed in batch.deltas for name, _ in placed.delta.columns}
        self._tables.prepare(batch.table, batch.schema, written)
        deltas, rows = 0, 0
        dead: tuple[DeadLetter, ...] = ()
        for part, last in parts(batch, DELTAS_MAX):
            inserted = retried(partial(self._insert_part, batch, part, last))
            deltas += inserted.deltas
            rows += inserted.rows
            dead = inserted.dead_letters
        return Inserted(deltas, rows, dead)

    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        mark, writes, refused = self._ledger.standing(batch.table)
        if mark >= last:
            return Inserted(dead_letters=self._ledger.dead_letters(batch.table))
        if mark < batch.after:
            raise missing_batch(batch, mark)
        fresh = [placed for placed in part if placed.position.commit > mark]
        stored: dict[str, Any] = {}

        def states(row_ids: list[str]) -> Mapping[str, Any]:
            stored.update(self._ledger.states(batch.table, [*row_ids, *refused]))
            return stored

        changed = merged(fresh, states)
        again = {row_id: stored[row_id] for row_id in refused if row_id not in changed}
        move = moved_on(writes, mark, last, self._history_ms)
        dead = self._tables.write(batch.table, move, fresh, {**changed, **again})
        return Inserted(len(fresh), len(changed), dead)

    def _put(self, images: RowImages) -> Inserted:
        written = {name for state in images.rows.values() if state for name in state.columns}
        self._tables.prepare(images.table, images.schema, written)
        return retried(partial(self._put_rows, images))

    def _put_rows(self, images: RowImages) -> Inserted:
        table = images.table
        mark, writes, refused = self._ledger.standing(table)
        if mark >= images.last:
            return Inserted(dead_letters=self._ledger.dead_letters(table))
        if mark < images.after:
            raise missing_batch(images, mark)
        stored = self._ledger.states(table, [*images.rows, *refused]) if images.rows else {}
        changed, gone = merged_images(images, stored)
        if not (changed or gone or images.is_last):
            return Inserted(dead_letters=self._ledger.dead_letters(table))
        again = {row_id: stored[row_id] for row_id in refused if row_id in stored}
        states = {**again, **changed, **dict.fromkeys(gone)}
        move = Move(writes, mark)
        if images.is_last:
            move = Move(writes, images.last, forgets=images.last)
        dead = self._tables.write(table, move, (), states)
        return Inserted(0, len(changed) + len(gone), dead)

    def _try_again(self, table: str) -> tuple[DeadLetter, ...]:
        mark, writes, refused = self._ledger.standing(table)
        if not refused:
            return ()
        states = self._ledger.states(table, refused)
        return self._tables.write(table, Move(writes, mark), (), states)

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            self._tables.forget()  # another writer may have changed them: they are read again
            return Err(error)


# --- large batches --------------------------------------------------------------------------------


STAGES_MAX: Final = 800
"""Stages that one write takes; BigQuery lets a query name 1,000 tables."""
ROWS_READ: Final = 20_000
"""Rows whose states a part of a large batch reads at a time."""


class Change(NamedTuple):
    """A delta on its way to the part that owns its row: bytes, and its place in commit order."""

    row_id: str
    commit: Stamp
    place: int
    record: bytes | None
    """The delta, encoded by `lakesync.wire.records`; None for a refused row that is only tried
    again."""


@dataclass(frozen=True, slots=True)
class BulkWrite:
    """What each process needs in order to prepare its part of a write. Can be pickled."""

    gateway: str
    table: str
    definition: str
    """The definition of the table to query, as text."""
    mark: Stamp
    """The table's mark when the write began."""
    refused: frozenset[str]
    """The rows that were refused earlier and are tried again."""


class BulkInsert:
    """Applies batches whose parts other processes merge and stage."""

    def __init__(
        self,
        jobs: Jobs,
        ledger: BigQueryLedger,
        tables: BigQueryTables,
        gateway: str,
        history_ms: int | None,
    ) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._tables = tables
        self._gateway = gateway
        self._history_ms = history_ms

    def insert(
        self, batch: TableBatch, written: Iterable[str], stage: Callable[[BulkWrite], list[Stage]]
    ) -> Inserted:
        """Apply a batch; see `BigQueryAdapter.insert_staged`."""
        self._tables.prepare(batch.table, batch.schema, written)
        for _ in range(ATTEMPTS_MAX):
            inserted = self._attempt(batch, stage)
            if inserted is not None:
                return inserted
        raise others_first()

    def _attempt(
        self, batch: TableBatch, stage: Callable[[BulkWrite], list[Stage]]
    ) -> Inserted | None:
        """Return None if another writer was first."""
        table = batch.table
        mark, writes, refused = self._ledger.standing(table)
        if mark >= batch.last:
            return Inserted(dead_letters=self._ledger.dead_letters(table))
        if mark < batch.after:
            raise missing_batch(batch, mark)
        definition = self._tables.definition(table).to_json()
        work = BulkWrite(self._gateway, table, definition, mark, frozenset(refused))
        stages = stage(work)
        names = [one.name for one in stages]
        try:
            dead = few_enough(table, (letter for one in stages for letter in one.refused))
            if len(stages) > STAGES_MAX:
                raise AdapterFailed(
                    f"BigQuery: one write takes {STAGES_MAX} stages, and the rows of {table} need "
                    f"{len(stages)}: they are too large for so many deltas at once"
                )
            move = moved_on(writes, mark, batch.last, self._history_ms)
            self._tables.take(table, move, names)
        except Contention:
            return None
        finally:
            drop_stages(self._jobs, names)
        return Inserted(sum(one.deltas for one in stages), sum(one.rows for one in stages), dead)


def stage_commits(jobs: Jobs, work: BulkWrite, deltas: Iterable[PlacedDelta]) -> Iterator[Stage]:
    """Load whole commits behind the mark into stages of the history, in order.

    Raises:
        AdapterFailed: BigQuery refused, or could not be reached; what was loaded has no effect.
    """
    stages = Stages(jobs, from_json(work.table, work.definition))
    fresh = (one for one in deltas if one.position.commit > work.mark)
    for _, commit in groupby(fresh, key=lambda one: one.position.commit):
        placed = list(commit)
        for line in commit_lines(placed):
            yield from stages.add(line, deltas=len(placed))
    yield from stages.rest()


def stage_rows(jobs: Jobs, work: BulkWrite, changes: Iterable[Change]) -> Iterator[Stage]:
    """Load the rows that deltas behind the mark change, and the rows that were refused earlier.

    Args:
        jobs: the dataset.
        work: the write.
        changes: grouped by row, in commit order within a row; rows in the order of their ids, so
            that BigQuery reads only a part of its table for their states.
    """
    definition = from_json(work.table, work.definition)
    ledger, stages = BigQueryLedger(jobs, work.gateway), Stages(jobs, definition)
    for rows in _some_rows(changes):
        stored = ledger.states(work.table, list(rows))
        fresh = [one for row in rows.values() for one in row if one.position.commit > work.mark]
        changed = _changed(fresh, stored)
        again = {row: stored[row] for row in rows if row in work.refused and row in stored}
        for row_id, state in (again | changed).items():
            line = row_line(definition, row_id, state)
            yield from stages.add(line, rows=int(row_id in changed))
    yield from stages.rest()


def _changed(fresh: Iterable[PlacedDelta], stored: Mapping[str, RowState]) -> dict[str, RowState]:
    return merged(fresh, lambda _: stored)


def _some_rows(changes: Iterable[Change]) -> Iterator[dict[str, list[PlacedDelta]]]:
    rows: dict[str, list[PlacedDelta]] = {}
    for row_id, some in groupby(changes, key=attrgetter("row_id")):
        if len(rows) >= ROWS_READ:
            yield rows
            rows = {}
        rows[row_id] = [
            PlacedDelta(Position(one.commit, one.place), delta)
            for one in some
            if one.record is not None
            for delta in decode_records(bytes(one.record))
        ]
    if rows:
        yield rows


def _opened(place: DatabasePlace) -> BigQueryAdapter:
    jobs = bigquery_jobs(place.url, place.credentials)
    return BigQueryAdapter(jobs, place.keeper, history_ms=place.history_ms)


BIGQUERY: Final = DatabaseType("BigQuery", _opened)
