"""One run of maintenance: checks every table, and does what pays off, several tables at once.

    1. every table is looked at                      `lake_plan.steps_for` says what pays
    2. group by group, files are rewritten           under the lease that merges take too
    3. snapshots expire, orphans are removed         without one: they move no table on

The lease prevents a merge and a rewrite from making each other retry. Iceberg's validation ensures
that nothing is lost or duplicated, as between two merges. Every rewrite carries the table's mark,
so older snapshots may expire. Law L17: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.names import folded, is_flow_database, lake_database
from lakesync.maintenance.lake_plan import ORPHAN_AGE_MS_MIN, UNDER_LEASE, Step, steps_for
from lakesync.materialise.lake_schema import BATCH, COMMIT, EPOCH
from lakesync.materialise.work_queue import Lease, group_of, lease_key
from lakesync_spark.common.report import reason_of, say
from lakesync_spark.common.scheduling import table_threads
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.maintenance_report import (
    MaintenanceOutcome,
    MaintenanceReport,
    TableReport,
)
from lakesync_spark.iceberg.table_files import TableFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from pyspark.sql import SparkSession

    from lakesync.materialise.work_queue import LakeStore
    from lakesync_spark.common.arguments import MaintenanceArguments

TABLES_AT_ONCE_MAX: Final = 8
"""Tables that a run looks at, or works on, at once."""
TAKING_S_MAX: Final = 3_600.0
"""How long a run takes up tables; what it leaves, the next run does."""
LEASE_S_MAX: Final = 600.0
"""How long a run starts on tables under one lease: batches of its gateways wait meanwhile."""
BUSY_S_MAX: Final = 300.0
"""How long a run retries groups that a merge holds, before it skips them."""
LOOK_S: Final = 10.0
"""How soon it comes back."""


class Table(NamedTuple):
    name: str
    """As SQL writes it."""
    gateway: str
    report: TableReport


def maintain(
    spark: SparkSession, store: LakeStore, arguments: MaintenanceArguments, run_id: str
) -> MaintenanceReport:
    """Do what pays off for every table. Safe to repeat, to kill, and to run beside merges.

    Args:
        store: the store of the leases; its clock is the run's.
        arguments: the tables, and how long snapshots are kept.
    """
    work = _Maintenance(spark, store, arguments, run_id)
    with table_threads(spark, TABLES_AT_ONCE_MAX) as threads:
        work.go(threads)
    return work.report


class _Maintenance:
    def __init__(
        self, spark: SparkSession, store: LakeStore, arguments: MaintenanceArguments, run_id: str
    ) -> None:
        self.report = MaintenanceReport(arguments.stack)
        self._spark = spark
        self._store = store
        self._arguments = arguments
        self._run_id = run_id
        self._deletes_files = arguments.catalogue.deletes_files
        self._table = arguments.only.partition("/")[2]
        """The only one that was asked for, with its history; empty for all."""
        store.read(lease_key(0))  # any answer of S3 has its time
        self._now_ms = int(store.now.timestamp() * 1000)
        self._old_ms = self._now_ms - arguments.snapshot_keep_ms
        self._ends = time.monotonic() + TAKING_S_MAX

    def go(self, threads: ThreadPoolExecutor) -> None:
        """Look, rewrite under leases, and clean."""
        names = list(table_names(self._spark, self._arguments))
        tables = [table for table in threads.map(self._look, names) if table is not None]
        groups: dict[int, list[Table]] = {}
        for table in tables:
            if UNDER_LEASE & set(table.report.steps):
                groups.setdefault(group_of(table.gateway), []).append(table)
        self._rewrite_groups(groups, threads)
        list(threads.map(self._clean, tables))

    def _look(self, name: str) -> Table | None:
        """Count a table's files, and decide what pays; None for one that is not ours."""
        try:
            lake_table = LakeTable(self._spark, name)
            owner = lake_table.owner
            if owner.stack != self._arguments.stack:
                say("not ours", table=name, stack=owner.stack)
                return None
            if folded(owner.table) != folded(self._table or owner.table):
                return None
            files = TableFiles(self._spark, name)
            before = files.figures(self._old_ms)
            steps = steps_for(before, name, self._now_ms)
            if self._arguments.only and Step.ORPHANS not in steps:
                steps = (*steps, Step.ORPHANS)  # who asks for a table now asks for all of it
            if not lake_table.deletes_files:
                steps = tuple(step for step in steps if step in UNDER_LEASE)
            table_report = TableReport(name, owner.gateway, owner.table, before, steps)
        except Exception as error:  # noqa: BLE001 - one table's fault must not stop the others
            self.report.add(
                TableReport(name, outcome=MaintenanceOutcome.FAILED, reason=reason_of(error))
            )
            return None
        self.report.add(table_report)
        return Table(name, owner.gateway, table_report)

    def _rewrite_groups(self, groups: dict[int, list[Table]], threads: ThreadPoolExecutor) -> None:
        """Process the groups in turn; retry busy ones for a while."""
        waits_until = time.monotonic() + BUSY_S_MAX
        while groups:
            for group in list(groups):
                lease = Lease.acquire_if_free(self._store, group, self._run_id)
                if lease is not None:
                    with lease:
                        self._rewrite_tables(groups.pop(group), lease, threads)
            if not groups or time.monotonic() > min(waits_until, self._ends):
                break
            self._store.pause(LOOK_S)
        for table in (one for tables in groups.values() for one in tables):
            table.report.leave("a run that merges was at work all the time")

    def _rewrite_tables(
        self, tables: Sequence[Table], lease: Lease, threads: ThreadPoolExecutor
    ) -> None:
        ends = min(time.monotonic() + LEASE_S_MAX, self._ends)

        def rewrite(table: Table) -> None:
            if time.monotonic() > ends:
                table.report.leave("there was no more time")
                return
            with table.report.doing():
                self._rewrite(table, lease)

        list(threads.map(rewrite, tables))

    def _rewrite(self, table: Table, lease: Lease) -> None:
        lake_table = LakeTable(self._spark, table.name)
        lake_table.keep_mark()
        mark = lake_table.batch_mark()
        lease.rise_above(mark.epoch)
        properties = {COMMIT: str(mark.commit), BATCH: "maintenance", EPOCH: str(lease.epoch)}
        files = TableFiles(self._spark, table.name)
        steps = {
            Step.FILES: files.rewrite,
            Step.DELETES: files.rewrite_deletes,
            Step.MANIFESTS: files.rewrite_manifests,
        }
        are_rewritten = False
        for step, do in steps.items():
            # An earlier step may have done all: steps are chosen by the current state.
            now = files.figures(self._old_ms)
            # Delete files for files that were just rewritten are without effect.
            in_vain = step is Step.DELETES and are_rewritten and now.delete_files > 0
            if in_vain or step in steps_for(now, table.name, self._now_ms):
                lease.check()
                say("maintaining", table=table.name, step=step)
                do(properties)
                are_rewritten = are_rewritten or step is Step.FILES
        lake_table.refresh()
        lake_table.keep_mark()

    def _clean(self, table: Table) -> None:
        """Do what needs no lease, and count again."""
        report = table.report
        if not report.steps or report.outcome is MaintenanceOutcome.FAILED:
            return
        files = TableFiles(self._spark, table.name)
        with report.doing():
            if Step.SNAPSHOTS in report.steps:
                say("maintaining", table=table.name, step=Step.SNAPSHOTS)
                (files.expire if self._deletes_files else files.forget_snapshots)(self._old_ms)
            if Step.ORPHANS in report.steps and self._deletes_files:
                say("maintaining", table=table.name, step=Step.ORPHANS)
                report.orphans = files.remove_orphans(self._now_ms - ORPHAN_AGE_MS_MIN)
            report.after = files.figures(self._old_ms)
        say("maintained", **report.as_dict())


def table_names(spark: SparkSession, arguments: MaintenanceArguments) -> Iterator[str]:
    """Yield the tables of all gateways, or of one, as SQL writes them.

    Tables of flows are maintained by the flows, under separate leases and outside this job's
    control.
    """
    catalog = f"`{arguments.catalog}`"
    if arguments.only:
        databases = [lake_database(arguments.database_prefix, arguments.only.partition("/")[0])]
    else:
        rows = spark.sql(f"SHOW NAMESPACES IN {catalog}").collect()
        prefix = arguments.database_prefix
        names = [row[0] for row in rows if row[0].startswith(f"{prefix}_")]
        databases = [name for name in names if not is_flow_database(prefix, name)]
    for database in databases:
        place = f"{catalog}.`{database}`"
        if spark.catalog.databaseExists(place):
            rows = spark.sql(f"SHOW TABLES IN {place}").where("NOT isTemporary").collect()
            yield from (f"{place}.`{row['tableName']}`" for row in rows)
