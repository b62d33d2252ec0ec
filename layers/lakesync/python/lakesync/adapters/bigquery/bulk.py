"""One batch, prepared by many processes: each merges and stages a part; one script writes all.

A part uses the adapter's own functions, as for a whole batch: it reads the states of its rows,
merges its deltas into them by `core.merge`, and loads the result into its own stages. Then one
script writes all stages and moves the mark. As for any write, the script checks that the table's
count of writes has not changed since the first state was read.

A stage belongs to one attempt at one part. A part that is retried, or done twice, loads other
stages; unused stages are dropped here, or removed by BigQuery after a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.batches import merged
from lakesync.adapters.bigquery.ledger import BigQueryLedger
from lakesync.adapters.bigquery.stage_lines import commit_lines, row_line
from lakesync.adapters.bigquery.stages import Stages, drop_stages
from lakesync.adapters.bigquery.statements import moved_on
from lakesync.adapters.bigquery.tables import ATTEMPTS_MAX, few_enough, others_first
from lakesync.adapters.database import Inserted, PlacedDelta, Position, missing_batch
from lakesync.adapters.sql.definition import from_json
from lakesync.errors import AdapterFailed, Contention
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.bigquery.stages import Stage
    from lakesync.adapters.bigquery.tables import BigQueryTables
    from lakesync.adapters.database import TableBatch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState

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
