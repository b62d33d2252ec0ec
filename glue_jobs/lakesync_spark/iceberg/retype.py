"""Gives text columns the types that a schema declares, for all rows, in one commit.

    1. a helper column of the new type is added beside the old one      (metadata)
    2. every row is written again with the helper filled                (validated overwrite)
    3. the old column goes, the helper takes its name                   (one compare-and-swap)

A reader sees text before step 3 and typed values after it. After a crash between any two steps, all
three are repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from lakesync.materialise.lake_schema import STATE_TABLE, TEXTS
from lakesync_spark.common.queries import asked
from lakesync_spark.iceberg.json_text import definition, is_lost, kept_text, typed
from lakesync_spark.iceberg.state import KEPT, kept_json, opened, register_text
from lakesync_spark.iceberg.writing import overwrite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.materialise.lake_schema import Evolution, LakeColumn
    from lakesync_spark.iceberg.lake_table import LakeTable


def retype(
    spark: SparkSession, table: LakeTable, evolution: Evolution, properties: Mapping[str, str]
) -> None:
    """Give the retyped columns of an evolution their types. Safe to repeat, and to kill.

    Raises:
        Conflict: the table changed meanwhile; nothing that it holds was lost.
    """
    add_helpers(spark, table, evolution.retyped)
    if table.snapshot_id is not None:
        fill_helpers(spark, table, evolution, properties)
    pairs = [(column.name, _helper(column)) for column in evolution.retyped]
    table.swap_columns(pairs, table.snapshot_id)


def add_helpers(spark: SparkSession, table: LakeTable, retyped: Sequence[LakeColumn]) -> None:
    for column in retyped:
        if not table.has_field(_helper(column)):
            declared = definition(column, _helper(column))
            spark.sql(f"ALTER TABLE {table.name} ADD COLUMN {declared} AFTER `{column.name}`")
    table.refresh()


def fill_helpers(
    spark: SparkSession, table: LakeTable, evolution: Evolution, properties: Mapping[str, str]
) -> None:
    """Write every row again, with the helper columns filled."""
    rows = spark.table(table.name)
    if table.kind is STATE_TABLE:
        rows = retyped_state(rows, table.columns(), evolution.retyped)
    else:
        rows = retyped_changes(rows, evolution.retyped)
    overwrite(rows, table, sf.lit(True), properties)
    table.refresh()


def retyped_state(
    rows: DataFrame, columns: Sequence[LakeColumn], retyped: Sequence[LakeColumn]
) -> DataFrame:
    """Return state rows with the helper columns filled: each is a view of its text."""
    before = {column.name: column for column in columns}
    texts = {c.name: register_text(before[c.name]) for c in retyped}
    typed_rows = asked(rows, lambda view: opened(view, columns)).withColumns(
        {_helper(c): sf.expr(typed(texts[c.name], c.type)) for c in retyped}
    )
    kept = {
        # Until the swap only the text has the values of a column of type null: it stays.
        KEPT + c.name: kept_text(c.type, f"`{_helper(c)}`", texts[c.name])
        for c in retyped
        if before[c.name].type != "null"
    }
    with_texts = typed_rows.withColumns({name: sf.expr(text) for name, text in kept.items()})
    return with_texts.withColumn(TEXTS, sf.expr(kept_json(list(before)))).select(*rows.columns)


def retyped_changes(rows: DataFrame, retyped: Sequence[LakeColumn]) -> DataFrame:
    """Return deltas with the helper columns filled from their current text."""
    texts = {c.name: f"coalesce(`{c.name}`, `{TEXTS}`['{c.name}'])" for c in retyped}
    values = {c.name: typed(texts[c.name], c.type) for c in retyped}
    filled = {_helper(column): values[column.name] for column in retyped}
    names = ", ".join(f"'{name}'" for name in texts)
    lost = {c.name: is_lost(c.type, values[c.name], texts[c.name]) for c in retyped}
    losses = ", ".join(f"'{name}', if({test}, {texts[name]}, NULL)" for name, test in lost.items())
    others = f"map_filter(coalesce(`{TEXTS}`, map()), (name, text) -> name NOT IN ({names}))"
    both = f"map_filter(map_concat({others}, map({losses})), (name, text) -> text IS NOT NULL)"
    return _replaced(rows, {**filled, TEXTS: f"if(cardinality({both}) > 0, {both}, NULL)"})


def _replaced(rows: DataFrame, values: Mapping[str, str]) -> DataFrame:
    return rows.select(
        *(sf.expr(values.get(name, f"`{name}`")).alias(name) for name in rows.columns)
    )


def _helper(column: LakeColumn) -> str:
    """Name the helper column; no column of a table begins with ``_``."""
    return f"_new_{column.name}"
