"""Appends deltas to a changes or events table without Spark: Arrow makes files, Iceberg takes them.

    1. files are made of the batches' objects, several at once              on this machine
    2. they are copied to where the table's data lies                       nobody knows them yet
    3. they are in the table, with the mark                                 one commit

The commit has the same validation as Spark's: no file that may hold a commit of the range was added
since the table was read. A run that dies before it leaves files that maintenance removes.
Laws L4, L6, L7, L11: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from lakesync.materialise.change_files import ChangeFiles, packed
from lakesync.materialise.lake_schema import COMMIT_STAMP
from lakesync_spark.common.java import java_class
from lakesync_spark.iceberg.fields import ids_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.materialise.work_queue import Chain, Link
    from lakesync_spark.iceberg.lake_table import LakeTable
    from lakesync_spark.iceberg.workbench import Target, Workbench

FILES_AT_ONCE: Final = 2
"""Files of one table that are made at a time: the driver has four cores, and other tables."""
_ICEBERG: Final = "org.apache.iceberg"


class _Range(NamedTuple):
    """The commits that an append brings: ``(after, last]``."""

    after: Stamp
    last: Stamp


def may_register(table: LakeTable) -> bool:
    """Get whether files may hold rows in commit order: partitions and sorted files are Spark's."""
    java = table.java
    return bool(java.spec().isUnpartitioned()) and not java.sortOrder().isSorted()


def register_changes(bench: Workbench, target: Target, chain: Chain) -> None:
    """Append the deltas of a chain that a table lacks, with the mark, in one commit.

    Raises:
        ValidationFailed: an object is gone, or is not a batch.
    """
    table, applied = target.table, target.batch_mark.commit
    made = ChangeFiles(bench.store, table.kind, target.columns, ids_by_name(table.fields()))
    at = bench.store.now.replace(microsecond=0)
    files = packed([link for link in chain.links if link.batch.last > applied])

    def data_file(links: Sequence[Link]) -> Any:
        with tempfile.TemporaryDirectory(prefix="lakesync-") as folder:
            path = Path(folder) / "changes.parquet"
            count = made.write(path, links, applied, at)
            return _placed(bench.spark, table, path) if count else None

    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        data_files = [file for file in threads.map(data_file, files) if file is not None]
    bench.lease.check()
    properties = bench.properties(chain.last, chain.links[-1].batch.name)
    _commit(bench.spark, table, _Range(applied, chain.last), data_files, properties)


def _placed(spark: SparkSession, table: LakeTable, path: Path) -> Any:
    """Copy a file to the table's data location; returns Iceberg's description of it."""
    java = table.java
    place = java.locationProvider().newDataLocation(f"{uuid4()}.parquet")
    local = java_class(spark, "java.io.File")(str(path)).toPath()
    stream = java.io().newOutputFile(place).create()
    try:
        java_class(spark, "java.nio.file.Files").copy(local, stream)
    finally:
        stream.close()
    written = java.io().newInputFile(place)
    config = java_class(spark, f"{_ICEBERG}.MetricsConfig").forTable(java)
    metrics = java_class(spark, f"{_ICEBERG}.parquet.ParquetUtil").fileMetrics(written, config)
    builder = java_class(spark, f"{_ICEBERG}.DataFiles").builder(java.spec())
    builder = builder.withInputFile(written).withFormat("parquet").withMetrics(metrics)
    return builder.build()


def _commit(
    spark: SparkSession,
    table: LakeTable,
    commits: _Range,
    files: Sequence[Any],
    properties: Mapping[str, str],
) -> None:
    """Replace the files of a range of commits, of which the table has none, by new files."""
    expressions = java_class(spark, f"{_ICEBERG}.expressions.Expressions")
    both = getattr(expressions, "and")
    within = both(
        expressions.greaterThan(COMMIT_STAMP, commits.after),
        expressions.lessThanOrEqual(COMMIT_STAMP, commits.last),
    )
    change = table.java.newOverwrite().overwriteByRowFilter(within)
    change = change.conflictDetectionFilter(within)
    change = change.validateNoConflictingData().validateNoConflictingDeletes()
    # A table without a snapshot is validated from its very beginning.
    if table.snapshot_id is not None:
        change = change.validateFromSnapshot(table.snapshot_id)
    for file in files:
        change = change.addFile(file)
    for name, value in properties.items():
        change = change.set(name, value)
    change.commit()
