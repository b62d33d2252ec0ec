"""Brings deltas into the state table: merges matching rows on a branch, or rewrites all rows.

Laws L1, L6, L7: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import ID
from lakesync_spark.common.fold import fold
from lakesync_spark.common.queries import asked, selected
from lakesync_spark.iceberg.branch_write import NoBranches, replace_rows
from lakesync_spark.iceberg.merging import merged
from lakesync_spark.iceberg.state import Synced
from lakesync_spark.iceberg.writing import overwrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakesync.materialise.work_queue import Chain
    from lakesync_spark.iceberg.lake_table import LakeTable
    from lakesync_spark.iceberg.workbench import Target, Workbench

REWRITE_DELTAS_PER_ROW: Final = 1.0
"""How many deltas and dead rows for each row of the state table let a batch write it anew."""
BROADCAST_DELTAS_MAX: Final = 4_000_000
"""Up to how many deltas their row ids are sent to each task that reads the table: 0.3 GB."""


def merge_state(bench: Workbench, target: Target, chain: Chain, tries_left: int = 2) -> None:
    """Merge the chain's deltas into the rows, whatever their order.

    A concurrent commit, such as a compaction, makes it start again.
    """
    if target.batch_mark.commit >= chain.last:
        return
    staged = {name for link in chain.links for _, name in link.batch.columns}
    given = [column for column in target.columns if column.staged in staged]
    names = [column.name for column in given]
    deltas = bench.deltas(chain.links, target, given)
    properties = bench.properties(chain.last, chain.links[-1].batch.name)
    synced = Synced(chain.last, bench.now)

    def change(rows: str, view: str, *, all_rows: bool) -> str:
        folded = fold(view, names)
        return merged(
            folded, rows, target.columns, names, synced,
            all_rows=all_rows, delete_wins=target.table.delete_wins,
        )  # fmt: skip

    def rewrite() -> None:
        # The whole table: any commit since `target` was read makes this one fail.
        none = "" if target.table.snapshot_id is not None else "false"
        rows = selected(target.table.name, ("*",), none)
        states = asked(deltas, lambda view: change(rows, view, all_rows=True))
        overwrite(states, target.table, sf.lit(True), properties)
        target.keep_mark()

    bench.lease.check()
    if _is_rewritten(target.table, chain):
        rewrite()
        return
    broadcast = sum(link.batch.deltas for link in chain.links) <= BROADCAST_DELTAS_MAX

    def change_some(rows: str) -> DataFrame:
        def some(view: str) -> str:
            return change(_of_deltas(rows, view) if broadcast else rows, view, all_rows=False)

        return asked(deltas, some)

    try:
        replace_rows(bench.spark, target.table, change_some, properties, broadcast=broadcast)
    except NoBranches:
        rewrite()
    except Conflict:
        now = bench.find(target.table.name)
        if now is None or now.table.snapshot_id == target.table.snapshot_id or not tries_left:
            raise
        merge_state(bench, now, chain, tries_left - 1)


def _of_deltas(rows: str, deltas: str) -> str:
    """Return the rows that the deltas are of, and those few that share a hash with one.

    The table is neither shuffled nor sorted: the hashes of the deltas' row ids go to each task.
    """
    hashes = selected(deltas, ("xxhash64(_row_id) AS _hash",))
    return (
        f"SELECT /*+ BROADCAST(hashes) */ * FROM {rows}"  # noqa: S608 - ours
        f" LEFT SEMI JOIN ({hashes}) AS hashes ON xxhash64({ID}) = _hash"
    )


def _is_rewritten(table: LakeTable, chain: Chain) -> bool:
    """Return whether writing all rows anew is cheaper than a merge: there is no less to be done.

    A merge joins, and writes each row that changes and a delete file. Each dead row came of a delta
    of some merge before, so a rewrite that they bring about costs in proportion to all of those.
    """
    deltas = sum(link.batch.deltas for link in chain.links)
    live, dead = table.records()
    return table.snapshot_id is None or deltas + dead >= REWRITE_DELTAS_PER_ROW * live
