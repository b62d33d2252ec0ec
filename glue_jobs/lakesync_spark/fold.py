"""Folds deltas into one row state for each row id, as `core.merge.fold` does.

A register is a struct ``(hlc, client_id, json)``. Spark orders structs field by field and text by
its UTF-8 bytes, which is the order of ``core.merge``: so the winner of a column is its ``max``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from lakesync_spark.shape import ID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

ALIVE: Final = "_alive"
"""The latest insert that no delete covers; 0 if there is none."""
DELETED: Final = "_deleted"
"""The latest delete; 0 if there is none."""
_HASH: Final = "_hash"


def fold(deltas: DataFrame, names: Sequence[str]) -> DataFrame:
    """Give one row for each row id: its stamps, and a register for each column, in normal form.

    Args:
        deltas: staged rows, in any order: ``_row_id``, ``_op``, ``_client_id``, ``_hlc`` and JSON
            text by column.
        names: the columns that may occur, by their lake names.

    Returns:
        `ID`, `ALIVE`, `DELETED`, and under the name of each column its register, or NULL.
    """
    folded = (
        _keyed(deltas, names)
        .groupBy(_HASH, ID)
        .agg(*(sf.max(name).alias(name) for name in (ALIVE, DELETED, *names)))
    )
    stamped = folded.select(
        ID, *(sf.coalesce(name, sf.lit(0)).alias(name) for name in (ALIVE, DELETED)), *names
    )
    is_alive = sf.col(ALIVE) > sf.col(DELETED)
    return stamped.select(
        ID,
        sf.when(is_alive, sf.col(ALIVE)).otherwise(sf.lit(0)).alias(ALIVE),
        DELETED,
        *(_above_deleted(name).alias(name) for name in names),
    )


def _keyed(deltas: DataFrame, names: Sequence[str]) -> DataFrame:
    """Bring the deltas of a row together, each with its registers.

    One shuffle before the aggregation, and registers behind it: they are wider than deltas, and
    made once here are copied whole from then on. Sorting by a hash first compares eight bytes where
    row ids would be compared whole.
    """
    return (
        deltas.withColumnRenamed("_row_id", ID)
        .repartition(ID)
        .select(
            sf.xxhash64(ID).alias(_HASH),
            ID,
            _hlc_of("INSERT").alias(ALIVE),
            _hlc_of("DELETE").alias(DELETED),
            *(_register(name).alias(name) for name in names),
        )
    )


def _hlc_of(op: str) -> Column:
    return sf.when(sf.col("_op") == op, sf.col("_hlc"))


def _register(name: str) -> Column:
    """Give a delta's write of a column; NULL if it carries none."""
    write = sf.struct(
        sf.col("_hlc").alias("hlc"),
        sf.col("_client_id").alias("client_id"),
        sf.col(name).alias("json"),
    )
    return sf.when(sf.col(name).isNotNull(), write)


def _above_deleted(name: str) -> Column:
    return sf.when(sf.col(name)["hlc"] > sf.col(DELETED), sf.col(name))
