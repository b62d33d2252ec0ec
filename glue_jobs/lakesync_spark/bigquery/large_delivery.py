"""Delivers the large batches of one table of a BigQuery destination.

The chain, claims, gaps and missing objects are handled as in the function, by the same
`TableDelivery`. The differences are which process reads the batches, how many make one write, and
when the job takes a table.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.adapters.database import TableBatch
from lakesync.core.column_map import map_to_json
from lakesync.core.deliveries import claimed_last
from lakesync.delivery.deliverer import LARGE_PACE, is_large, state_of
from lakesync.delivery.table_delivery import TableDelivery
from lakesync.errors import AdapterFailed, LakeSyncError, NotFound, ValidationFailed
from lakesync.materialise.work_queue import Link
from lakesync.systems.bigquery.bigquery_database import BigQueryAdapter
from lakesync.systems.bigquery.bigquery_ledger import drop_stages
from lakesync_spark.bigquery.parts import Source, stage_parts
from lakesync_spark.common.report import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.core.deliveries import Batch
    from lakesync.delivery.table_context import TableContext
    from lakesync.ports import ObjectStore
    from lakesync.systems.bigquery.bigquery_database import BulkWrite
    from lakesync.systems.bigquery.bigquery_jobs import Jobs
    from lakesync.systems.bigquery.bigquery_ledger import Stage


class LargeDelivery(TableDelivery):
    """Works on one table, as long as it is assigned to the job.

    Args:
        context: its dependencies; its database is a `BigQueryAdapter`.
        spark: the session.
        objects: opens the objects where a task runs.
        jobs: opens the dataset where a task runs.
        deltas_min: from how many waiting deltas on the job takes the table.
    """

    def __init__(
        self,
        context: TableContext,
        spark: SparkSession,
        objects: Callable[[], ObjectStore],
        jobs: Callable[[], Jobs],
        deltas_min: int,
    ) -> None:
        super().__init__(context, pace=LARGE_PACE)
        self._spark = spark
        self._objects = objects
        self._jobs = jobs
        self._deltas_min = deltas_min
        self._was_not_staged = False

    def work(self, has_time: Callable[[], bool]) -> bool:
        """Continue as long as the backlog is large; other requests are left to the function."""
        keys = self._listed()
        if not keys or not all(map(claimed_last, keys)):
            return True
        return self._follow(keys, self._context.mark(), has_time)

    def _takes(self, batches: Sequence[Batch]) -> bool:
        context = self._context
        state = state_of(context.buffer, context.place)
        return is_large(context.destination, state, context.table, batches, self._deltas_min)

    def _apply(self, run: Sequence[Batch], mark: Stamp) -> Stamp:
        """Apply consecutive batches as one write; returns the last commit, or 0."""
        try:
            for batch in run:
                self._context.objects.get_range(batch.object_key, 0, 1)
            return self._insert(run, mark)
        except LakeSyncError as error:
            if isinstance(error, NotFound) or self._was_not_staged:
                for batch in run:
                    if reason := self._unreadable(batch):
                        self._see_to(batch, reason)
                        return 0
            raise

    def _unreadable(self, batch: Batch) -> LakeSyncError | None:
        try:
            self._context.deltas_of(batch)
        except (NotFound, ValidationFailed) as error:
            return error
        return None

    def _insert(self, run: Sequence[Batch], mark: Stamp) -> Stamp:
        context, last = self._context, run[-1]
        database = context.database
        assert isinstance(database, BigQueryAdapter)  # noqa: S101 - no other kind is large
        column_map = context.destination.map_of(context.table)
        seen = [mark, *(batch.last for batch in run)]
        source = Source(
            self._objects,
            self._jobs,
            tuple(Link(replace(one, schema=None), above)
                  for one, above in zip(run, seen, strict=False)),
            json.dumps(map_to_json(column_map)),
            context.delete_wins,
        )  # fmt: skip
        names = {column_map.target(name) for batch in run for name, _ in batch.columns}
        schema = context.destination.schema_of(context.table, last.schema)
        batch = TableBatch(context.table, run[0].after, last.last, (), schema)
        self.has_written = True
        written = {*filter(None, names), *column_map.constant}
        inserted = database.insert_staged(batch, written, lambda work: self._stage(source, work))
        self.deltas += inserted.unwrap().deltas
        return last.last

    def _stage(self, source: Source, work: BulkWrite) -> list[Stage]:
        try:
            stages = stage_parts(self._spark, source, work)
        except LakeSyncError:
            raise
        except Exception as error:
            # Spark gives a failed task's last output, but not its error's type.
            self._was_not_staged = True
            raise AdapterFailed(
                f"a part of the write was not staged: {reason_of(error)}"
            ) from error
        try:
            self._context.check_declared()  # it may have taken long
        except LakeSyncError:
            with closing(self._jobs()) as jobs:
                drop_stages(jobs, [one.name for one in stages])
            raise
        return stages
