"""What all steps of a run on a table need: session, store, lease, and access to the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lakesync.materialise.lake_schema import BATCH, COMMIT, EPOCH
from lakesync_spark.common.staging import read_deltas
from lakesync_spark.iceberg.tables import find_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_schema import BatchMark, LakeColumn
    from lakesync.materialise.views import ViewCatalogue
    from lakesync.materialise.work_queue import LakeStore, Lease, Link
    from lakesync_spark.iceberg.lake_table import LakeTable


class Target(NamedTuple):
    """A lake table as a step finds it."""

    table: LakeTable
    batch_mark: BatchMark
    columns: tuple[LakeColumn, ...]

    def keep_mark(self) -> None:
        """Move the tag to the mark that was just committed."""
        self.table.refresh()
        self.table.keep_mark()


@dataclass(frozen=True, slots=True)
class Workbench:
    """What all steps need."""

    spark: SparkSession
    store: LakeStore
    lease: Lease
    stack: str
    """Whose tables these are."""
    views: ViewCatalogue | None = None
    """Where the views of tables are kept; None where nobody reads any."""

    @property
    def now(self) -> str:
        return f"TIMESTAMP '{self.store.now:%Y-%m-%d %H:%M:%S}Z'"

    def find(self, name: str) -> Target | None:
        """Return a table's current state, after checking that no later run has written to it."""
        table = find_table(self.spark, name, self.stack)
        if table is None:
            return None
        table.keep_mark()  # before the mark is read: both are of the same refresh
        batch_mark = table.batch_mark()
        self.lease.rise_above(batch_mark.epoch)
        return Target(table, batch_mark, table.columns())

    def deltas(
        self, links: Sequence[Link], target: Target, columns: Sequence[LakeColumn]
    ) -> DataFrame:
        """Return the staged deltas that a table lacks, with some of its columns."""
        names = {column.name: column.staged for column in columns}
        return read_deltas(self.spark, self.store.root, links, names, target.batch_mark.commit)

    def properties(self, commit: Stamp, batch: str) -> dict[str, str]:
        return {COMMIT: str(commit), BATCH: batch, EPOCH: str(self.lease.epoch)}
