"""Turns deltas into rows of the changes table, or of an events table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakesync_spark.constants import with_constants
from lakesync_spark.json_text import kept_texts, typed
from lakesync_spark.shape import CARRIED, ID, SYNCED_AT, TEXTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    names = [column.name for column in columns]
    texts = {name: f"`{_text(name)}`" for name in names}
    tail = {
        CARRIED: _carried(texts),
        SYNCED_AT: SYNCED_AT,
        TEXTS: kept_texts(columns, {name: f"`{name}`" for name in names}, texts),
    }
    timed = with_constants(_valued(deltas, kind, columns), {SYNCED_AT: synced_at})
    return timed.select(
        *kind.head, *names, *(sf.expr(tail[name]).alias(name) for name in kind.tail)
    )


def _valued(deltas: DataFrame, kind: Kind, columns: Sequence[LakeColumn]) -> DataFrame:
    """Put typed values beside their texts.

    A step of its own: what reads a value afterwards does not compute it again.
    """
    return deltas.withColumnRenamed("_row_id", ID).select(
        *kind.head,
        *(sf.expr(typed(f"`{c.name}`", c.type)).alias(c.name) for c in columns),
        *(sf.col(column.name).alias(_text(column.name)) for column in columns),
    )


def _text(name: str) -> str:
    """Name the text of a column; no column of a table begins with ``_``."""
    return f"_text_{name}"


def _carried(texts: Mapping[str, str]) -> str:
    """Give the SQL of the names of the columns that a delta carries."""
    names = (f"if({text} IS NULL, '', '{name}')" for name, text in texts.items())
    return f"array_remove(CAST(array({', '.join(names)}) AS ARRAY<STRING>), '')"
