"""Builds a checkpoint from the lake, for gateways with too many rows to read from the buffer.

    1. each state table is looked at                    its mark, and the snapshot that carries it
    2. the stamp from which the log goes on is chosen   `lakesync.checkpoint`
    3. the rows of each snapshot become chunks          `write_chunks`
    4. the manifest is written                          from here the checkpoint exists

A build that dies before step 4 leaves unreferenced objects. Law L13: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.checkpoint.store import (
    Checkpoints,
    Manifest,
    TableChunks,
    Tombstones,
    checkpoint_id,
    put_manifest,
)
from lakesync.core.gateway_identity import was_restored
from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import HLC, IS_DELETED, STAMPS, STATE_TABLE
from lakesync_spark.common.report import say
from lakesync_spark.iceberg.row_chunks import Destination, write_chunks
from lakesync_spark.iceberg.tables import find_table, located

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.checkpoint import Flushed
    from lakesync.core.clock import Stamp
    from lakesync.ports import ObjectStore
    from lakesync_spark.common.arguments import CheckpointArguments
    from lakesync_spark.iceberg.lake_table import LakeTable


class Built(NamedTuple):
    checkpoint: str
    since: Stamp
    rows: int
    """Rows that were written; none if an earlier checkpoint has all that the lake has."""


def build(
    spark: SparkSession,
    objects: Callable[[], ObjectStore],
    arguments: CheckpointArguments,
    now_ms: int,
) -> Built:
    """Build a checkpoint of what is in the lake. Safe to repeat, to kill, and to do twice at once.

    Args:
        objects: opens the bucket of checkpoints, here and in the tasks that read rows.

    Raises:
        Conflict: the lake's rows are not the buffer's, or too far behind, or another stack's.
    """
    flushed = arguments.flushed
    if was_restored(flushed.epoch):
        raise Conflict(
            f"the buffer of {flushed.gateway} was restored, and the lake may hold what it lost;"
            " build from the row states"
        )
    tables = _state_tables(spark, arguments)
    since = flushed.since({name: table.batch_mark().commit for name, table in tables.items()})
    if since < max(flushed.horizon, 1):
        raise Conflict(
            f"the lake has {flushed.gateway} up to {since}, and its log begins at"
            f" {flushed.horizon}; let what waits be materialised, and build again"
        )
    store = objects()
    latest = Checkpoints(store).latest(flushed.gateway, flushed.epoch, since)
    if latest is not None:
        return Built(latest.id, latest.since, 0)
    checkpoint = checkpoint_id(since, now_ms)
    chunks = {}
    for name, table in sorted(tables.items()):
        to = Destination(objects, flushed.gateway, checkpoint, name, arguments.chunk_bytes)
        rows = _rows(spark, table, flushed.tombstone_horizons.get(name, 0))
        chunks[name] = _write(rows, table, to)
    filled = {name: table for name, table in chunks.items() if table.chunks}
    put_manifest(store, Manifest(checkpoint, flushed.gateway, flushed.epoch, since, filled))
    return Built(checkpoint, since, sum(table.rows for table in filled.values()))


def _state_tables(spark: SparkSession, arguments: CheckpointArguments) -> dict[str, LakeTable]:
    flushed: Flushed = arguments.flushed
    by_name = {}
    for name in flushed.tables:
        lake = located(spark, arguments.catalog, arguments.database_prefix, flushed.gateway, name)
        table = find_table(spark, lake.rows, arguments.stack)
        if table is not None and table.kind is STATE_TABLE and table.snapshot_id is not None:
            by_name[name] = table
    return by_name


def _rows(spark: SparkSession, table: LakeTable, forgotten: Stamp) -> DataFrame:
    """Return the rows of a table's snapshot, without the tombstones that the buffer may forget."""
    rows = spark.sql(f"SELECT * FROM {table.name} VERSION AS OF {table.snapshot_id}")  # noqa: S608 - ours
    # Where deletes win, a hidden row may have updates: it is not a tombstone, and has stamps.
    return rows.where(f"NOT ({IS_DELETED} AND {STAMPS} IS NULL AND {HLC} <= {forgotten})")


def _write(rows: DataFrame, table: LakeTable, to: Destination) -> TableChunks:
    say("writing", table=f"{to.gateway}/{to.table}", snapshot=str(table.snapshot_id))
    written = list(write_chunks(rows, table.columns(), to))
    chunks = tuple(each.chunk for each in written)
    return TableChunks(chunks, _all(each.tombstones for each in written))


def _all(tombstones: Iterable[Tombstones]) -> Tombstones:
    counted = [each for each in tombstones if each.count]
    oldest = min((each.oldest for each in counted), default=0)
    return Tombstones(sum(each.count for each in counted), oldest)
