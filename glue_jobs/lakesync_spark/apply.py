"""Applies batches to one gateway table's lake tables, in steps that are each safe to repeat.

    1. the tables exist and have the columns that the batches need      `prepare`
    2. the deltas are in the changes table, with its mark               `append_changes`
    3. the rows are in the state table, with its mark                   `merge_state`
    4. the claims are deleted                                           `forget`

Each table has its own mark, written atomically with its data, and takes only what is above it: so a
step that was done is found done, and 2 and 3 go on at once. Laws L1-L6: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from pyspark.sql import functions as sf

from lakesync_spark.chain import Link, next_chain
from lakesync_spark.changes import change_rows
from lakesync_spark.columns import wanted_columns
from lakesync_spark.fold import fold, state_writes, written
from lakesync_spark.lake_table import BATCH, COMMIT, EPOCH
from lakesync_spark.scheduling import pool_of, table_threads
from lakesync_spark.shape import CHANGES_TABLE, EVENTS_TABLE, ID, STATE_TABLE
from lakesync_spark.staging import read_deltas
from lakesync_spark.state import Bounds, Synced, merge_statement, state_rows
from lakesync_spark.tables import create_table, evolve_table, find_table
from lakesync_spark.writing import execute, overwrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.core.clock import Stamp
    from lakesync_spark.batches import Batch
    from lakesync_spark.chain import Chain
    from lakesync_spark.columns import LakeColumn
    from lakesync_spark.lake_table import BatchMark, LakeTable
    from lakesync_spark.lease import Lease
    from lakesync_spark.shape import Kind
    from lakesync_spark.storage import LakeStore
    from lakesync_spark.tables import TableName

REWRITE_DELTAS_PER_ROW: Final = 1.0
"""How many deltas and dead rows for each row of the state table let a batch write it anew."""


class Target(NamedTuple):
    """A lake table as a step finds it."""

    table: LakeTable
    batch_mark: BatchMark
    columns: tuple[LakeColumn, ...]


@dataclass(frozen=True, slots=True)
class Workbench:
    """What all steps need."""

    spark: SparkSession
    store: LakeStore
    lease: Lease
    stack: str
    """Whose tables these are."""

    @property
    def now(self) -> str:
        """The time, as an SQL literal."""
        return f"TIMESTAMP '{self.store.now:%Y-%m-%d %H:%M:%S}Z'"

    def find(self, name: str) -> Target | None:
        """Give a table as it is now, after making sure that no later run has written to it."""
        table = find_table(self.spark, name, self.stack)
        if table is None:
            return None
        table.keep_mark()  # before the mark is read: both are of one look at the table
        batch_mark = table.batch_mark()
        self.lease.rise_above(batch_mark.epoch)
        return Target(table, batch_mark, table.columns())

    def deltas(self, links: Sequence[Link], target: Target) -> DataFrame:
        """Give the staged deltas that a table has not got yet."""
        names = [column.name for column in target.columns]
        return read_deltas(self.spark, self.store.root, links, names, target.batch_mark.commit)

    def properties(self, commit: Stamp, batch: str) -> dict[str, str]:
        """Give what the snapshot of a commit carries."""
        return {COMMIT: str(commit), BATCH: batch, EPOCH: str(self.lease.epoch)}


def survey(bench: Workbench, name: TableName, batches: Sequence[Batch], deltas_max: int) -> Chain:
    """Choose the batches that come next: those above the lowest mark of the lake's tables."""
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
        append_changes(bench, prepare(bench, name, EVENTS_TABLE, batches), chain)
    else:
        changes = prepare(bench, name, CHANGES_TABLE, batches)
        rows = prepare(bench, name, STATE_TABLE, batches)
        # They share nothing but what they read: while one is planned, the other computes.
        with table_threads(bench.spark, 2, pool_of(bench.spark)) as pool:
            steps = [
                pool.submit(append_changes, bench, changes, chain),
                pool.submit(merge_state, bench, rows, chain),
            ]
        for step in steps:
            step.result()
    forget(bench, (*batches, *chain.covered))


def prepare(bench: Workbench, name: TableName, kind: Kind, batches: Sequence[Batch]) -> Target:
    """Make sure that a table exists and has the columns of its batches."""
    wanted = wanted_columns(batches)
    partition = next((b.schema.partition for b in reversed(batches) if b.schema), ())
    table = name.changes if kind is CHANGES_TABLE else name.rows
    target = bench.find(table)
    if target is None:
        made = create_table(bench.spark, name, kind, wanted, partition, bench.stack)
        target = Target(made, made.batch_mark(), made.columns())
    bench.lease.check()
    properties = bench.properties(target.batch_mark.commit, "retype")
    columns = evolve_table(bench.spark, target.table, wanted, partition, properties)
    return target._replace(batch_mark=target.table.batch_mark(), columns=columns)


def append_changes(bench: Workbench, target: Target, chain: Chain) -> None:
    """Write the chain's deltas behind those that are there.

    The filter is the range of commits: whatever a run that was replaced may have written there
    between our look and our commit makes the commit fail.
    """
    if target.batch_mark.commit >= chain.last:
        return
    deltas = bench.deltas(chain.links, target)
    rows = change_rows(deltas, target.table.kind, target.columns, bench.now)
    commit = sf.col("_commit")
    bench.lease.check()
    overwrite(
        rows,
        target.table,
        (commit > target.batch_mark.commit) & (commit <= chain.last),
        bench.properties(chain.last, chain.links[-1].batch.name),
    )
    _keep_mark(target.table)


def merge_state(bench: Workbench, target: Target, chain: Chain) -> None:
    """Merge the chain's deltas into the rows, whatever their order."""
    if target.batch_mark.commit >= chain.last:
        return
    names = [column.name for column in target.columns]
    rows = bench.spark.table(target.table.name)
    writes = written(bench.deltas(chain.links, target), names, rows)
    properties = bench.properties(chain.last, chain.links[-1].batch.name)
    synced = Synced(chain.last, bench.now)
    bench.lease.check()
    if _is_rewritten(target.table, chain):
        if target.table.snapshot_id is not None:
            writes = writes.unionByName(state_writes(rows, names))
        # All of the table: any commit since `target` was found makes this one fail.
        states = state_rows(fold(writes, names), target.columns, synced)
        overwrite(states, target.table, sf.lit(True), properties)
        _keep_mark(target.table)
        return
    folded = f"lakesync_folded_{uuid4().hex}"  # a session has one name space for all threads
    fold(writes, names).createOrReplaceTempView(folded)
    statement = merge_statement(target.table.name, folded, target.columns, _bounds(writes), synced)
    try:
        execute(bench.spark, statement, properties)
    finally:
        bench.spark.catalog.dropTempView(folded)
    _keep_mark(target.table)


def forget(bench: Workbench, batches: Sequence[Batch]) -> None:
    """Delete the claims of batches that are in the lake. Safe to repeat."""
    for batch in batches:
        bench.store.delete(batch.claim_key)


def is_readable(bench: Workbench, batch: Batch) -> bool:
    """Tell whether a batch's object exists and can be read to its end."""
    if bench.store.read(batch.object_key) is None:
        return False
    deltas = read_deltas(
        bench.spark,
        bench.store.root,
        [Link(batch, batch.after)],
        [name for _, name in batch.columns],
        0,
    )
    try:
        deltas.write.format("noop").mode("overwrite").save()
    except Exception:  # noqa: BLE001 - whatever Spark calls it: the object is there, and unreadable
        return False
    return True


def _is_events(rows: Target | None, batches: Sequence[Batch]) -> bool:
    """Tell whether rows are events: as the table was made, or as its first batch declares."""
    if rows is not None:
        return rows.table.kind is EVENTS_TABLE
    return min(batches, key=lambda batch: batch.last).append


def _keep_mark(table: LakeTable) -> None:
    table.refresh()
    table.keep_mark()


def _is_rewritten(table: LakeTable, chain: Chain) -> bool:
    """Tell whether writing all rows anew is cheaper than a merge: there is no less to be done.

    A merge joins, and writes each row that changes and a delete file. Each dead row came of a delta
    of some merge before, so a rewrite that they bring about costs in proportion to all of those.
    """
    deltas = sum(link.batch.deltas for link in chain.links)
    live, dead = table.records()
    return table.snapshot_id is None or deltas + dead >= REWRITE_DELTAS_PER_ROW * live


def _bounds(writes: DataFrame) -> Bounds:
    ends = writes.agg(sf.min(ID), sf.max(ID)).first()
    return Bounds(*(ends or ("", "")))
