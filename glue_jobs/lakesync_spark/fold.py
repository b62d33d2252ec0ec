"""Folds deltas and stored rows into one row state for each row id, as `core.merge.fold` does.

A register is a struct ``(hlc, client_id, json)``. Spark orders structs field by field and text by
its UTF-8 bytes, which is the order of ``core.merge``: so the winner of a column is its ``max``. A
row of the state table is folded like a delta: it holds registers too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync_spark.shape import ALIVE, COMMIT_STAMP, DELETED, ID, STAMPS, SYNCED_AT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

STATE_HASH: Final = "_state_hash"
"""A hash of the row in the state table; NULL for a row that is new."""
_HASH: Final = "_hash"


def written(deltas: DataFrame, names: Sequence[str], rows: DataFrame) -> DataFrame:
    """Give deltas as writes: what `fold` takes.

    Args:
        deltas: staged rows: ``_row_id``, ``_op``, ``_client_id``, ``_hlc`` and JSON text by column.
        names: the columns, by their lake names.
        rows: the state table, for the type of its `STAMPS`.
    """
    return deltas.select(
        sf.col("_row_id").alias(ID),
        _hlc_of("INSERT").alias(ALIVE),
        _hlc_of("DELETE").alias(DELETED),
        _nothing("long", COMMIT_STAMP),
        _nothing("timestamp", SYNCED_AT),
        _nothing("long", STATE_HASH),
        "_client_id",
        "_hlc",
        *names,
        *([_nothing(rows.schema[STAMPS].dataType, STAMPS)] if names else []),
    )


def state_writes(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Give rows of the state table as writes: what `fold` takes."""
    return rows.select(
        ID,
        ALIVE,
        DELETED,
        COMMIT_STAMP,
        SYNCED_AT,
        state_hash(names).alias(STATE_HASH),
        _nothing("string", "_client_id"),
        _nothing("long", "_hlc"),
        *(_nothing("string", name) for name in names),
        *([STAMPS] if names else []),
    )


def fold(writes: DataFrame, names: Sequence[str]) -> DataFrame:
    """Give one row for each row id: its stamps, and a register for each column, in normal form.

    Args:
        writes: as `written` and `state_writes` give them, in any order.
        names: the columns, by their lake names.

    Returns:
        `ID`, `ALIVE`, `DELETED`; `COMMIT_STAMP`, `SYNCED_AT` and `STATE_HASH` of a row that was
        there; and under the name of each column its register, or NULL.
    """
    folded = (
        _keyed(writes, names)
        .groupBy(_HASH, ID)
        .agg(
            *(
                sf.max(name).alias(name)
                for name in (ALIVE, DELETED, COMMIT_STAMP, SYNCED_AT, STATE_HASH, *names)
            )
        )
    )
    stamped = folded.select(
        ID,
        *(sf.coalesce(name, sf.lit(0)).alias(name) for name in (ALIVE, DELETED)),
        COMMIT_STAMP,
        SYNCED_AT,
        STATE_HASH,
        *names,
    )
    is_alive = sf.col(ALIVE) > sf.col(DELETED)
    return stamped.select(
        ID,
        sf.when(is_alive, sf.col(ALIVE)).otherwise(sf.lit(0)).alias(ALIVE),
        DELETED,
        COMMIT_STAMP,
        SYNCED_AT,
        STATE_HASH,
        *(_above_deleted(name).alias(name) for name in names),
    )


def state_hash(names: Sequence[str]) -> Column:
    """Give a hash of all that makes the state of a row, whose registers are in `STAMPS`."""
    return sf.xxhash64(ALIVE, DELETED, *(sf.col(STAMPS)[name] for name in names))


def _keyed(writes: DataFrame, names: Sequence[str]) -> DataFrame:
    """Bring the writes of a row together, each with its registers.

    One shuffle before the aggregation, and registers behind it: they are wider than deltas, and
    made once here are copied whole from then on. Sorting by a hash first compares eight bytes where
    row ids would be compared whole.
    """
    return writes.repartition(ID).select(
        sf.xxhash64(ID).alias(_HASH),
        ID,
        ALIVE,
        DELETED,
        COMMIT_STAMP,
        SYNCED_AT,
        STATE_HASH,
        *(_register(name).alias(name) for name in names),
    )


def _nothing(kind: DataType | str, name: str) -> Column:
    return sf.lit(None).cast(kind).alias(name)


def _hlc_of(op: str) -> Column:
    return sf.when(sf.col("_op") == op, sf.col("_hlc"))


def _register(name: str) -> Column:
    """Give a delta's write of a column; of a row of the state table, its register."""
    write = sf.struct(
        sf.col("_hlc").alias("hlc"),
        sf.col("_client_id").alias("client_id"),
        sf.col(name).alias("json"),
    )
    return sf.when(sf.col(name).isNotNull(), write).otherwise(sf.col(STAMPS)[name])


def _above_deleted(name: str) -> Column:
    return sf.when(sf.col(name)["hlc"] > sf.col(DELETED), sf.col(name))
