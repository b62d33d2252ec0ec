"""Applies batches to one gateway table's lake tables, in steps that are each safe to repeat.

    1. the tables exist and have the columns that the batches need      `prepare`
       and so do their views, which a fault keeps from no batch         `keep_views`
    2. the deltas are in the changes table, with its mark               `append_changes`
    3. the rows are in the state table, with its mark                   `merge_state`
    4. the claims are deleted                                           `forget`

Each table has its own mark, written atomically with its data, and takes only commits above it. So a
repeated step has no effect, and 2 and 3 run concurrently. Laws L1-L6: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakesync.core.names import lake_database
from lakesync.materialise.lake_schema import (
    CHANGES_TABLE,
    EVENTS_TABLE,
    STATE_TABLE,
    wanted_columns,
)
from lakesync.materialise.views import ViewedTable
from lakesync.materialise.work_queue import next_chain
from lakesync_spark.common.queries import asked
from lakesync_spark.common.report import say
from lakesync_spark.common.scheduling import pool_of, table_threads
from lakesync_spark.common.staging import is_whole
from lakesync_spark.iceberg.changes import change_rows
from lakesync_spark.iceberg.comments import all_comments
from lakesync_spark.iceberg.registering import may_register, register_changes
from lakesync_spark.iceberg.state_merge import merge_state
from lakesync_spark.iceberg.tables import create_table, evolve_table
from lakesync_spark.iceberg.workbench import Target
from lakesync_spark.iceberg.writing import overwrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.deliveries import Batch
    from lakesync.materialise.lake_schema import Kind
    from lakesync.materialise.work_queue import Chain
    from lakesync_spark.iceberg.tables import TableName
    from lakesync_spark.iceberg.workbench import Workbench


def survey(bench: Workbench, name: TableName, batches: Sequence[Batch], deltas_max: int) -> Chain:
    """Choose the next batches: those above the lowest mark of the lake's tables."""
    rows = bench.find(name.rows)
    marks = [rows.batch_mark.commit if rows else 0]
    if not _is_events(rows, batches):
        changes = bench.find(name.changes)
        marks.append(changes.batch_mark.commit if changes else 0)
    return next_chain(batches, min(marks), deltas_max=deltas_max)


def apply_chain(bench: Workbench, name: TableName, chain: Chain) -> None:
    """Bring a chain's batches into the lake, and forget them. Safe to repeat, and to kill."""
    batches = [link.batch for link in chain.links]
    if _is_events(bench.find(name.rows), batches):
        events = prepare(bench, name, EVENTS_TABLE, batches)
        keep_views(bench, name, events)
        append_changes(bench, events, chain)
    else:
        changes = prepare(bench, name, CHANGES_TABLE, batches)
        rows = prepare(bench, name, STATE_TABLE, batches)
        keep_views(bench, name, rows)
        # They share only their input: while one is planned, the other computes.
        with table_threads(bench.spark, 2, pool_of(bench.spark)) as pool:
            steps = [
                pool.submit(append_changes, bench, changes, chain),
                pool.submit(merge_state, bench, rows, chain),
            ]
        for step in steps:
            step.result()
    forget(bench, (*batches, *chain.covered))


def keep_views(bench: Workbench, name: TableName, rows: Target) -> None:
    """Create or update the views of a table; a fault does not stop the run. Safe to repeat."""
    if bench.views is None:
        return
    database, comments = lake_database(name.prefix, name.gateway), all_comments(rows.table)
    table = ViewedTable(
        database, name.lake_table, rows.table.kind, rows.columns, bench.stack, comments,
        rows.table.delete_wins, name.gateway, name.table,
    )  # fmt: skip
    for view, fault in bench.views.keep(table).items():
        say("view", name=f"{database}.{view}", fault=fault)


def prepare(bench: Workbench, name: TableName, kind: Kind, batches: Sequence[Batch]) -> Target:
    """Make sure that a table exists and has the columns of its batches."""
    others = [bench.find(each) for each in (name.changes, name.rows)]
    current = [column for other in others if other for column in other.columns]
    wanted = wanted_columns(batches, current)
    table = name.changes if kind is CHANGES_TABLE else name.rows
    target = bench.find(table)
    if target is None:
        delete_wins = any(b.schema.delete_wins for b in batches if b.schema)
        made = create_table(bench.spark, name, kind, wanted, bench.stack, delete_wins=delete_wins)
        target = Target(made, made.batch_mark(), made.columns())
    bench.lease.check()
    properties = bench.properties(target.batch_mark.commit, "retype")
    columns = evolve_table(bench.spark, target.table, wanted, batches, properties)
    return target._replace(batch_mark=target.table.batch_mark(), columns=columns)


def append_changes(bench: Workbench, target: Target, chain: Chain) -> None:
    """Append the chain's deltas.

    The filter is the range of commits: if a superseded run wrote to that range after this one read
    the table, the commit fails.
    """
    if target.batch_mark.commit >= chain.last:
        return
    if may_register(target.table):
        register_changes(bench, target, chain)
        target.keep_mark()
        return
    deltas = bench.deltas(chain.links, target, target.columns)
    kind, columns = target.table.kind, target.columns
    rows = asked(deltas, lambda view: change_rows(view, kind, columns, bench.now))
    commit = sf.col("_commit")
    bench.lease.check()
    overwrite(
        rows,
        target.table,
        (commit > target.batch_mark.commit) & (commit <= chain.last),
        bench.properties(chain.last, chain.links[-1].batch.name),
    )
    target.keep_mark()


def forget(bench: Workbench, batches: Sequence[Batch]) -> None:
    """Delete the claims of batches that are in the lake. Safe to repeat."""
    for batch in batches:
        bench.store.delete(batch.claim_key)


def is_readable(bench: Workbench, batch: Batch) -> bool:
    """Return whether a batch's object exists and is complete.

    Its bytes are checked here, without Spark: Spark may also fail because of throttling or expired
    credentials, which are not faults of the batch. Errors of reading the bytes are raised.
    """
    stored = bench.store.read(batch.object_key)
    return stored is not None and is_whole(stored.body)


def _is_events(rows: Target | None, batches: Sequence[Batch]) -> bool:
    """Return whether rows are events: as the table was created, or as its first batch declares."""
    if rows is not None:
        return rows.table.kind is EVENTS_TABLE
    return min(batches, key=lambda batch: batch.last).append
