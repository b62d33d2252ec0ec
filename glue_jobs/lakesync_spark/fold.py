"""Fold: all deltas of a batch to one row state for each row id, as `lakesync.core.merge.fold`.

A register is a struct ``(hlc, client_id, json)``. Spark orders structs field by field and text by
its UTF-8 bytes, which is the order of ``core.merge``: so the winner of a column is its ``max``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync_spark.shape import ALIVE, DELETED, ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

_HASH: Final = "_hash"


def fold(deltas: DataFrame, names: Sequence[str]) -> DataFrame:
    """Give one row for each row id: its stamps, and a register for each column, in normal form.

    Args:
        deltas: staged rows: ``_row_id``, ``_op``, ``_client_id``, ``_hlc`` and JSON text by column.
        names: the columns, by their lake names.

    Returns:
        `ID`, `ALIVE`, `DELETED`, and under the name of each column its register, or NULL.
    """
    deltas = deltas.select("_row_id", "_op", "_client_id", "_hlc", *names)
    # Sorting by a hash first compares eight bytes where row ids would be compared whole. One
    # shuffle before the aggregation keeps registers, which are wider than deltas, out of it.
    keyed = deltas.withColumn(_HASH, sf.xxhash64("_row_id")).repartition("_row_id")
    folded = keyed.groupBy(_HASH, "_row_id").agg(
        sf.max(_hlc_of("INSERT")).alias(ALIVE),
        sf.max(_hlc_of("DELETE")).alias(DELETED),
        *(sf.max(_register(name)).alias(name) for name in names),
    )
    stamped = folded.select(
        sf.col("_row_id").alias(ID),
        sf.coalesce(ALIVE, sf.lit(0)).alias(ALIVE),
        sf.coalesce(DELETED, sf.lit(0)).alias(DELETED),
        *names,
    )
    is_alive = sf.col(ALIVE) > sf.col(DELETED)
    return stamped.select(
        ID,
        sf.when(is_alive, sf.col(ALIVE)).otherwise(sf.lit(0)).alias(ALIVE),
        DELETED,
        *(_above_deleted(name).alias(name) for name in names),
    )


def _hlc_of(op: str) -> Column:
    return sf.when(sf.col("_op") == op, sf.col("_hlc"))


def _register(name: str) -> Column:
    written = sf.struct(
        sf.col("_hlc").alias("hlc"),
        sf.col("_client_id").alias("client_id"),
        sf.col(name).alias("json"),
    )
    return sf.when(sf.col(name).isNotNull(), written)


def _above_deleted(name: str) -> Column:
    return sf.when(sf.col(name)["hlc"] > sf.col(DELETED), sf.col(name))
