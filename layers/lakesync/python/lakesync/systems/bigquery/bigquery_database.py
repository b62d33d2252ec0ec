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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.adapters.database import Inserted, PlacedDelta, Position
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.ledger_database import (
    LedgerDatabase,
    merged,
    merged_images,
    missing_batch,
)
from lakesync.adapters.sql.ledger import from_json
from lakesync.errors import AdapterFailed, Contention, LakeSyncError
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

    from lakesync.adapters.database import DeadLetter, RowImages, TableBatch
    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result
    from lakesync.systems.bigquery.bigquery_jobs import Jobs
    from lakesync.systems.bigquery.bigquery_ledger import Stage

T = TypeVar("T")


class BigQueryAdapter(LedgerDatabase[BigQueryLedger]):
    """One gateway's deltas and rows in one BigQuery dataset. Not for several threads at once.

    Args:
        history_ms: how long history is kept, counted back from a batch; the first batch of a day
            forgets what is older. None keeps all.
    """

    def __init__(self, jobs: Jobs, gateway: str, *, history_ms: int | None = None) -> None:
        self._history_ms = history_ms
        self._jobs = jobs
        self._ledger = BigQueryLedger(jobs, gateway)
        self._tables = BigQueryTables(jobs, self._ledger, gateway)
        self._bulk = BulkInsert(jobs, self._ledger, self._tables, gateway, history_ms)

    def insert_staged(
        self, batch: TableBatch, written: Iterable[str], stage: Callable[[BulkWrite], list[Stage]]
    ) -> Result[Inserted, LakeSyncError]:
        """Apply a batch as `insert_deltas` does, but other processes merge and stage its deltas.

        Args:
            written: the columns that the deltas may have.
            stage: stages the whole write; called again if another writer was first.
        """
        return self._answer(lambda: self._bulk.insert(batch, written, stage))

    def close(self) -> None:
        self._tables.forget()
        self._jobs.close()

    # --- a batch ----------------------------------------------------------------------------------

    def _prepare(self, table: str, schema: TableSchema | None, written: Iterable[str]) -> None:
        self._tables.prepare(table, schema, written)

    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        return retried(partial(self._insert_once, batch, part, last))

    def _insert_once(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
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

    def _put_rows(self, images: RowImages) -> Inserted:
        return retried(partial(self._put_once, images))

    def _put_once(self, images: RowImages) -> Inserted:
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

    def _rewrite(self, table: str) -> int:
        return self._tables.prepare(table, None, (), always=True)

    def _retry(self, table: str) -> tuple[DeadLetter, ...]:
        self._tables.prepare(table, None, ())
        return retried(partial(self._retry_once, table))

    def _retry_once(self, table: str) -> tuple[DeadLetter, ...]:
        mark, writes, refused = self._ledger.standing(table)
        if not refused:
            return ()
        states = self._ledger.states(table, refused)
        return self._tables.write(table, Move(writes, mark), (), states)

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            self._tables.forget()  # another writer may have changed them
            return Err(error)

    def _read(self, work: Callable[[BigQueryLedger], T]) -> Result[T, LakeSyncError]:
        return self._answer(lambda: retried(lambda: work(self._ledger)))


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
