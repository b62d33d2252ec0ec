"""Gives a lake table its schema's layout: Iceberg's partitioning and sort order.

Both are only metadata. Existing files stay readable under the partitioning that they were written
with; files that a merge or maintenance rewrites get the new layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.materialise.lake_schema import LAYOUT, TableLayout, recorded_layout
from lakesync_spark.common.java import java_class, java_items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakesync.materialise.lake_schema import LayoutField
    from lakesync_spark.iceberg.lake_table import LakeTable

_EXPRESSIONS: Final = "org.apache.iceberg.expressions.Expressions"
_NULL_ORDER: Final = "org.apache.iceberg.NullOrder"


def keep_layout(spark: SparkSession, table: LakeTable, wanted: TableLayout) -> None:
    """Give a table its layout, unless it has it. Safe to repeat, and to kill.

    Partition fields that others added stay.
    """
    java = table.java
    recorded = recorded_layout(java.properties())
    if recorded == wanted or (recorded is None and wanted == TableLayout() and _is_plain(java)):
        return
    _partition(spark, java, recorded, wanted)
    order, nulls_first = java.replaceSortOrder(), java_class(spark, _NULL_ORDER).NULLS_FIRST
    for column in wanted.sort:
        order = order.asc(java_class(spark, _EXPRESSIONS).ref(column), nulls_first)
    order.commit()
    properties = java.updateProperties()
    # The write groups rows by partition: else each task writes a file of each partition.
    distribution = "hash" if java.spec().isPartitioned() else "none"
    properties = properties.set("write.distribution-mode", distribution)
    properties.set(LAYOUT, wanted.recorded).commit()
    table.refresh()


def _partition(
    spark: SparkSession, java: Any, recorded: TableLayout | None, wanted: TableLayout
) -> None:
    present = _fields(java)
    ours = present.keys() if recorded is None else {_key(field) for field in recorded.partition}
    asked = {_key(field): field for field in wanted.partition}
    update = java.updateSpec()
    for key in present.keys() & ours - asked.keys():
        update = update.removeField(present[key])
    for key, field in asked.items():
        if key not in present:
            update = update.addField(field.name, _term(spark, field))
    update.commit()


def _fields(java: Any) -> dict[tuple[str, str], str]:
    """Return the fields of the partition: their names, by column and transform."""
    schema = java.schema()
    return {
        (str(schema.findColumnName(field.sourceId())), str(field.transform())): str(field.name())
        for field in java_items(java.spec().fields())
    }


def _key(field: LayoutField) -> tuple[str, str]:
    return field.column, field.iceberg


def _term(spark: SparkSession, field: LayoutField) -> Any:
    expressions = java_class(spark, _EXPRESSIONS)
    if field.transform == "identity":
        return expressions.ref(field.column)
    make = getattr(expressions, field.transform)
    return make(field.column, field.width) if field.width else make(field.column)


def _is_plain(java: Any) -> bool:
    return not java.spec().isPartitioned() and not java.sortOrder().isSorted()
