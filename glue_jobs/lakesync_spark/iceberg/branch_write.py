"""Replaces rows of a table by way of a branch: readers see all of it or nothing.

    1. dead branches are dropped, and a branch of its own is made at the current snapshot
    2. the rows that change are added to it
    3. what they replace is deleted from it, by row id: the snapshot carries the mark
    4. the main branch is moved there, the tag with it, and the branch is gone     one commit

Step 4 is refused if the main branch has moved since step 1: then nothing of this takes effect, and
the write is repeated. A write that dies earlier leaves an unread branch, which the next one drops.
Laws L6, L7: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.materialise.lake_schema import COMMIT_STAMP, ID
from lakesync_spark.common.queries import view_of
from lakesync_spark.iceberg.branches import branch_names, drop_branch, fast_forward, make_branch
from lakesync_spark.iceberg.writing import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from lakesync_spark.iceberg.lake_table import LakeTable

PREFIX: Final = "lakesync_merge_"
"""How the names of such branches begin."""


class NoBranches(Exception):
    """The catalogue accepts branches but stores none, as Nessie does; no rows were written."""


def replace_rows(
    spark: SparkSession,
    table: LakeTable,
    change: Callable[[str], DataFrame],
    properties: Mapping[str, str],
    *,
    broadcast: bool,
) -> None:
    """Put rows in the place of those with the same ids. Safe to repeat, and to kill.

    Args:
        table: the table as it was read: its snapshot must still be current at the end.
        change: gives the changed rows from a table's rows; their `COMMIT_STAMP` is greater than
            that of any of these.
        broadcast: whether the ids of the rows that change fit into memory.

    Raises:
        Conflict: the table has changed meanwhile; nothing took effect.
        NoBranches: the catalogue stores no branches.
    """
    start = table.snapshot_id
    branch = open_branch(table, start)
    on_branch = f"{table.name}.`branch_{branch}`"
    add_rows(change(on_branch), on_branch)
    added = added_rows(spark, table, branch, start)
    delete_replaced(added, on_branch, properties, broadcast=broadcast)
    publish(spark, table, branch, start)


def open_branch(table: LakeTable, start: int | None) -> str:
    """Drop the branches of runs that died, and make one at a snapshot.

    Raises:
        NoBranches: it does not exist afterwards.
    """
    for dead in branch_names(table, PREFIX):
        drop_branch(table, dead)
    branch = f"{PREFIX}{uuid4().hex}"
    make_branch(table, branch, start)
    if branch not in branch_names(table, PREFIX):
        raise NoBranches
    return branch


def add_rows(rows: DataFrame, on_branch: str) -> None:
    rows.writeTo(on_branch).append()


def added_rows(spark: SparkSession, table: LakeTable, branch: str, start: int | None) -> DataFrame:
    """Return what was added to a branch: nothing else is read."""
    table.refresh()
    reader = spark.read.option("start-snapshot-id", str(start))
    end = table.java.snapshot(branch).snapshotId()
    return reader.option("end-snapshot-id", str(end)).table(table.name)


def delete_replaced(
    added: DataFrame, on_branch: str, properties: Mapping[str, str], *, broadcast: bool
) -> None:
    with view_of(added) as later:
        hint = f"/*+ BROADCAST({later}) */" if broadcast else ""
        # The commit is no literal: see `lakesync_spark.common.queries.with_constants`.
        both = f"{later}.{ID} = rows.{ID} AND {later}.{COMMIT_STAMP} > rows.{COMMIT_STAMP}"
        execute(
            added.sparkSession,
            f"DELETE FROM {on_branch} AS rows"  # noqa: S608 - ours
            f" WHERE EXISTS (SELECT {hint} {ID} FROM {later} WHERE {both})",
            properties,
        )


def publish(spark: SparkSession, table: LakeTable, branch: str, start: int | None) -> None:
    """Move the main branch and the tag to the end of the branch, and drop it, in one commit."""
    fast_forward(spark, table, branch, start)
