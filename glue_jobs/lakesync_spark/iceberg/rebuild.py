"""Rebuilds a state table from its changes table: for rows that were lost, or changed by hand.

    1. the state table is created, if it is gone, with the columns of the changes table
    2. all deltas are folded, as a merge folds a batch, and compared with the existing rows
    3. the rows are written in one commit, with the mark of the changes table

An unchanged row keeps its commit. Step 3 is refused if another writer changed the table meanwhile;
a run that dies before it has no effect on rows. Law L23: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync.errors import Conflict, NotFound, ValidationFailed
from lakesync.materialise.lake_schema import (
    CARRIED,
    COMMIT_STAMP,
    EVENTS_TABLE,
    ID,
    STATE_TABLE,
    SYNCED_AT,
    TEXTS,
)
from lakesync.materialise.work_queue import group_of
from lakesync_spark.common.fold import fold
from lakesync_spark.common.queries import asked, selected
from lakesync_spark.iceberg.merging import merged
from lakesync_spark.iceberg.row_erasure import wait_for_lease
from lakesync_spark.iceberg.state import Synced
from lakesync_spark.iceberg.tables import create_table, evolve_table, find_table, located
from lakesync_spark.iceberg.typed_text import text_of
from lakesync_spark.iceberg.workbench import Target, Workbench
from lakesync_spark.iceberg.writing import overwrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.materialise.lake_schema import LakeColumn
    from lakesync.materialise.work_queue import LakeStore
    from lakesync_spark.common.arguments import MaintenanceArguments
    from lakesync_spark.iceberg.lake_table import LakeTable
    from lakesync_spark.iceberg.tables import TableName

_OF_THE_COMMIT: Final = (COMMIT_STAMP, SYNCED_AT)
"""What two rows may differ in and be the same."""
_SYSTEM: Final = f"_commit, _ordinal, _op, {ID} AS _row_id, _client_id, _hlc, _delta_id"


@dataclass(slots=True)
class RebuildReport:
    """What a state table lacked, and what became of it."""

    table: str
    mark: str
    """How far its changes go, and the table with them."""
    rows: int = 0
    """That it has, or would have: tombstones too."""
    missing: int = 0
    changed: int = 0
    surplus: int = 0
    """Rows that no delta is of."""
    made: bool = False
    """There was no table."""
    written: bool = False

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def rebuild(
    spark: SparkSession, store: LakeStore, arguments: MaintenanceArguments, run_id: str
) -> RebuildReport:
    """Rebuild the state table of one table of a gateway. Safe to repeat, and to kill.

    Raises:
        ValidationFailed: no table is named, or its rows are events, which have no other source.
        NotFound: it has no changes table in the lake.
        Conflict: merges were running all the time, or another writer changed the table meanwhile.
    """
    gateway, _, table = arguments.only.partition("/")
    if not table:
        raise ValidationFailed("a rebuild is of one table: --only gateway/table", field="--only")
    with wait_for_lease(store, group_of(gateway), run_id) as lease:
        name = located(spark, arguments.catalog, arguments.database_prefix, gateway, table)
        bench = Workbench(spark, store, lease, arguments.stack)
        return _Rebuild(bench, name, _changes(bench, name)).go(is_dry=arguments.rebuild == "dry")


def _changes(bench: Workbench, name: TableName) -> Target:
    changes = bench.find(name.changes)
    if changes is not None:
        return changes
    rows = find_table(bench.spark, name.rows, bench.stack)
    if rows is not None and rows.kind is EVENTS_TABLE:
        raise ValidationFailed(
            f"{name.rows} holds events, each written once: there is nothing to make it of; restore"
            " an older snapshot of it",
            field="--only",
        )
    raise NotFound(f"there is no {name.changes}; the table is made by its first batch")


class _Rebuild:
    """One table's rebuild, under the lease of its gateway's group."""

    def __init__(self, bench: Workbench, name: TableName, changes: Target) -> None:
        self._bench = bench
        self._name = name
        self._changes = changes
        self._mark = changes.batch_mark.commit

    def go(self, *, is_dry: bool) -> RebuildReport:
        """Compare, and write unless it is a dry run or all is as it should be."""
        report = RebuildReport(self._name.rows.replace("`", ""), str(self._mark))
        rows = self._bench.find(self._name.rows)
        reached = rows.batch_mark.commit if rows else 0
        if reached > self._mark:
            raise Conflict(
                f"{self._name.rows} goes further than its changes; what waits is taken by the next"
                " run: lakesync flush --wait, then repeat this"
            )
        report.made = rows is None
        if rows is None and is_dry:
            report.rows = report.missing = self._ids()
            return report
        table = rows.table if rows and is_dry else self._prepared(rows)
        compared = self._compared(table).cache()
        try:
            self._count(compared, report)
            differs = report.missing or report.changed or report.surplus or reached != self._mark
            if differs and not is_dry:
                self._write(compared, table)
                report.written = True
        finally:
            compared.unpersist()
        return report

    def _prepared(self, rows: Target | None) -> LakeTable:
        """Get the state table with the columns of the changes table; it is made if it is gone."""
        bench, changes = self._bench, self._changes
        bench.lease.check()
        if rows is None:
            made = create_table(
                bench.spark, self._name, STATE_TABLE, changes.columns, bench.stack,
                delete_wins=changes.table.delete_wins,
            )  # fmt: skip
            rows = Target(made, made.batch_mark(), made.columns())
        properties = bench.properties(rows.batch_mark.commit, "retype")
        evolve_table(bench.spark, rows.table, changes.columns, (), properties)
        return rows.table

    def _ids(self) -> int:
        return self._bench.spark.table(self._name.changes).select(ID).distinct().count()

    def _compared(self, rows: LakeTable) -> DataFrame:
        columns = rows.columns()
        there = {column.name for column in columns}
        given = [column for column in self._changes.columns if column.name in there]
        names = [column.name for column in given]
        synced, spark = Synced(self._mark, self._bench.now), self._bench.spark

        def rebuilt(changes: str) -> str:
            folded = fold(deltas_of(changes, given, self._mark), names)
            none = selected(rows.name, ("*",), "false")
            return merged(
                folded, none, columns, names, synced, all_rows=True, delete_wins=rows.delete_wins
            )

        wanted = asked(spark.table(self._name.changes), rebuilt)
        fields = [field for field in wanted.columns if field not in _OF_THE_COMMIT]
        present = spark.table(rows.name).select(ID, sf.struct("*").alias("_present"))
        wanted = wanted.select(ID, sf.struct(*wanted.columns).alias("_wanted"))
        same = sf.expr(" AND ".join(f"_wanted.`{one}` <=> _present.`{one}`" for one in fields))
        return wanted.join(present, ID, "full").withColumn("_same", same)

    def _count(self, compared: DataFrame, report: RebuildReport) -> None:
        is_wanted, is_there = sf.col("_wanted").isNotNull(), sf.col("_present").isNotNull()
        counts = {
            "rows": is_wanted,
            "missing": is_wanted & ~is_there,
            "changed": is_wanted & is_there & ~sf.col("_same"),
            "surplus": ~is_wanted,
        }
        [row] = compared.select(
            *(sf.count_if(condition).alias(name) for name, condition in counts.items())
        ).collect()
        for name in counts:
            setattr(report, name, row[name])

    def _write(self, compared: DataFrame, rows: LakeTable) -> None:
        kept = compared.where("_wanted IS NOT NULL").selectExpr("if(_same, _present, _wanted) AS r")
        made = kept.select("r.*")
        self._bench.lease.check()
        overwrite(made, rows, sf.lit(True), self._bench.properties(self._mark, "rebuild"))
        rows.refresh()
        rows.keep_mark()


def deltas_of(changes: str, columns: Sequence[LakeColumn], upto: Stamp) -> str:
    """Return a query of a changes table's deltas as batches have them: with JSON text by column."""
    texts = (
        f"if(array_contains({CARRIED}, '{c.name}'), coalesce({TEXTS}['{c.name}'],"
        f" {text_of(f'`{c.name}`', c.type)}, 'null'), NULL) AS `{c.name}`"
        for c in columns
    )
    return selected(changes, (_SYSTEM, *texts), f"_commit <= {upto}")
