"""Prepares a write of a BigQuery table in Spark tasks: reads, shuffles by row id, stages.

This transform runs Python: a row's state is bytes from `core.merge`, so the adapter's own functions
(`lakesync.systems.bigquery`) run here, each on the rows of a range of ids. Rows are
assigned to tasks by ranges because BigQuery's tables are clustered by row id: each task reads a
part of the table for its states, and all tasks together about one table.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel

from lakesync.adapters.database import PlacedDelta
from lakesync.adapters.lake.parquet import read_batch
from lakesync.core.column_map import map_delta, map_from_stored
from lakesync.systems.bigquery.bigquery_database import Change, stage_commits, stage_rows
from lakesync.wire.records import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from lakesync.materialise.work_queue import Link
    from lakesync.ports import ObjectStore
    from lakesync.systems.bigquery.bigquery_database import BulkWrite
    from lakesync.systems.bigquery.bigquery_jobs import Jobs
    from lakesync.systems.bigquery.bigquery_ledger import Stage

DELTAS_PER_TASK: Final = 50_000
"""Deltas that a task merges and stages, about."""
TASKS_MAX: Final = 200
"""Tasks that share the batches of one write, for each of both steps."""
_CHANGES: Final = "row_id STRING, commit BIGINT, place INT, record BINARY"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a write's deltas are, and how they are transformed. Sent to the tasks."""

    objects: Callable[[], ObjectStore]
    jobs: Callable[[], Jobs]
    links: tuple[Link, ...]
    """In order; their ranges do not overlap."""
    column_map: str
    """The text of what `lakesync.core.column_map.map_to_json` gives."""
    delete_wins: bool

    def deltas(self, links: Iterable[Link]) -> Iterator[PlacedDelta]:
        """Read the deltas of some links, transformed for the destination, in commit order."""
        objects = self.objects()
        column_map = map_from_stored(json.loads(self.column_map))
        for batch, above in links:
            for position, delta in read_batch(objects.get_object(batch.object_key), batch):
                if position.commit > above:
                    mapped = map_delta(column_map, delta, delete_wins=self.delete_wins)
                    yield PlacedDelta(position, mapped)


def stage_parts(spark: SparkSession, source: Source, work: BulkWrite) -> list[Stage]:
    """Stage a whole write; returns the stages of the completed tasks.

    Cost: each object is read twice, and each delta crosses the network once. A task's memory holds
    the states of some thousand rows, and one stage.
    """
    context = spark.sparkContext
    deltas = sum(link.batch.deltas for link in source.links)
    readers = max(1, min(len(source.links), TASKS_MAX))
    links = context.parallelize(source.links, readers)
    stages = links.mapPartitions(lambda some: _commits(source, work, some)).collect()
    again = context.parallelize([Change(row, 0, 0, None) for row in sorted(work.refused)], 1)
    changes = links.mapPartitions(lambda some: _changes(source, work, some)).union(again)
    tasks = max(1, min(-(-deltas // DELTAS_PER_TASK), TASKS_MAX))
    # Materialised: Spark samples all rows first to find the bounds of the ranges.
    rows = spark.createDataFrame(changes, _CHANGES, verifySchema=False)
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        ordered = rows.repartitionByRange(tasks, "row_id")
        ordered = ordered.sortWithinPartitions("row_id", "commit", "place")
        return stages + ordered.rdd.mapPartitions(lambda some: _rows(source, work, some)).collect()
    finally:
        rows.unpersist()


# --- in the tasks ---------------------------------------------------------------------------------


def _commits(source: Source, work: BulkWrite, links: Iterable[Link]) -> Iterator[Stage]:
    with closing(source.jobs()) as jobs:
        yield from stage_commits(jobs, work, source.deltas(links))


def _changes(source: Source, work: BulkWrite, links: Iterable[Link]) -> Iterator[Change]:
    for (commit, place), delta in source.deltas(links):
        if commit > work.mark:
            yield Change(delta.row_id, commit, place, encode_record(delta))


def _rows(source: Source, work: BulkWrite, rows: Iterable[Iterable[object]]) -> Iterator[Stage]:
    with closing(source.jobs()) as jobs:
        yield from stage_rows(jobs, work, (Change(*row) for row in rows))  # type: ignore[arg-type]  # as the schema has them
