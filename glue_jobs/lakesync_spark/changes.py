"""Changes: deltas as rows of the changes table, or of an events table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakesync_spark.json_text import typed, unfit_map
from lakesync_spark.shape import CARRIED, ID, SYNCED_AT, UNFIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from lakesync_spark.columns import LakeColumn
    from lakesync_spark.shape import Kind


def change_rows(
    deltas: DataFrame, kind: Kind, columns: Sequence[LakeColumn], synced_at: str
) -> DataFrame:
    """Give one row for each delta, in the order of the deltas.

    Args:
        deltas: staged rows, with JSON text by column.
        kind: whose columns to give.
        columns: the table's columns.
        synced_at: an SQL literal.
    """
    staged = deltas.withColumnRenamed("_row_id", ID)
    texts = {column.name: f"`{column.name}`" for column in columns}
    values = {column.name: typed(texts[column.name], column.type) for column in columns}
    tail = {
        CARRIED: _carried(columns),
        SYNCED_AT: synced_at,
        UNFIT: unfit_map(values, texts),
    }
    return staged.select(
        *kind.head,
        *(sf.expr(value).alias(name) for name, value in values.items()),
        *(sf.expr(tail[name]).alias(name) for name in kind.tail),
    )


def _carried(columns: Sequence[LakeColumn]) -> str:
    """Give the SQL of the names of the columns that a delta carries."""
    names = (f"if(`{column.name}` IS NULL, '', '{column.name}')" for column in columns)
    return f"array_remove(CAST(array({', '.join(names)}) AS ARRAY<STRING>), '')"
