"""Creates lake tables when they are first needed, and adds the columns that a batch needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.names import CHANGES_SUFFIX, folded, lake_database, lake_tables
from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import (
    DELETE_WINS,
    GATEWAY,
    KIND,
    STACK,
    WRITTEN,
    evolve,
    table_comment,
    wanted_layout,
)
from lakesync_spark.iceberg.comments import edited_comments, keep_comments
from lakesync_spark.iceberg.json_text import definition, spark_type
from lakesync_spark.iceberg.lake_table import LakeTable
from lakesync_spark.iceberg.layout import keep_layout
from lakesync_spark.iceberg.retype import retype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from lakesync.core.deliveries import Batch
    from lakesync.materialise.lake_schema import Kind, LakeColumn

_PROPERTIES: Final = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.delete.isolation-level": "serializable",
    "write.metadata.delete-after-commit.enabled": "true",
    # What is taken away from one file comes to one task: delete files are as few as files.
    "write.delete.distribution-mode": "hash",
    "write.spark.advisory-partition-size-bytes": str(64 << 20),
    # Rows arrive hashed by row id, or partitioned by the write itself: no sort by partition.
    "write.spark.fanout.enabled": "true",
    # Stamps and ids hardly repeat; a smaller dictionary finds out sooner.
    "write.parquet.dict-size-bytes": "131072",
}


class TableName(NamedTuple):
    """A gateway's table, and where its lake tables are."""

    catalog: str
    prefix: str
    gateway: str
    table: str
    """On the wire."""
    lake_table: str
    """In the lake."""

    @property
    def database(self) -> str:
        return f"`{self.catalog}`.`{lake_database(self.prefix, self.gateway)}`"

    @property
    def rows(self) -> str:
        return f"{self.database}.`{self.lake_table}`"

    @property
    def changes(self) -> str:
        return f"{self.database}.`{self.lake_table}{CHANGES_SUFFIX}`"


def located(spark: SparkSession, catalog: str, prefix: str, gateway: str, table: str) -> TableName:
    """Find the lake tables of a gateway's table, or the name to create them under.

    If the readable name already belongs to another table, the name with a digest is used. Existing
    tables keep their names: their properties say whose they are.
    """
    names = [TableName(catalog, prefix, gateway, table, name) for name in lake_tables(table)]
    free = None
    for name in names:
        owner = _owner(spark, name)
        if owner is not None and folded(owner) == folded(table):
            return name
        if owner is None and free is None:
            free = name
    return free or names[-1]


def _owner(spark: SparkSession, name: TableName) -> str | None:
    """Return the table that lake tables tell of; itself if they do not say, None if there are none.

    Those that LakeSync did not make are in the way, and not passed by.
    """
    for table in (name.rows, name.changes):
        if spark.catalog.tableExists(table):
            return LakeTable(spark, table).written or name.table
    return None


def find_table(spark: SparkSession, name: str, stack: str) -> LakeTable | None:
    """Return a table; None if there is none.

    Raises:
        Conflict: it is another stack's.
    """
    if not spark.catalog.tableExists(name):
        return None
    table = LakeTable(spark, name)
    table.check_stack(stack)
    return table


def create_table(
    spark: SparkSession,
    name: TableName,
    kind: Kind,
    columns: Sequence[LakeColumn],
    stack: str,
    *,
    delete_wins: bool = False,
) -> LakeTable:
    """Create the table of a kind, unless there is one.

    Raises:
        Conflict: another stack, or another table of the gateway, created it meanwhile.
    """
    table = name.changes if kind.name == "changes" else name.rows
    properties = {
        **_PROPERTIES,
        "write.distribution-mode": "none",
        KIND: kind.name,
        STACK: stack,
        GATEWAY: name.gateway,
        WRITTEN: name.table,
        **({DELETE_WINS: "true"} if delete_wins else {}),
    }
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {name.database}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(_definitions(kind, columns))})"
        f" USING iceberg COMMENT '{table_comment(kind, name.table)}'"
        f" TBLPROPERTIES ({_listed(properties)})"
    )
    made = LakeTable(spark, table)
    made.check_stack(stack)
    if folded(made.written) != folded(name.table):
        raise Conflict(f"{made.written} took the name {table} meanwhile; it is tried with another")
    return made


def _definitions(kind: Kind, columns: Sequence[LakeColumn]) -> list[str]:
    head, tail = ([f"`{n}` {t}" for n, t in part.items()] for part in (kind.head, kind.tail))
    return [*head, *map(definition, columns), *tail]


def evolve_table(
    spark: SparkSession,
    table: LakeTable,
    wanted: Sequence[LakeColumn],
    batches: Sequence[Batch],
    properties: Mapping[str, str],
) -> tuple[LakeColumn, ...]:
    """Bring a table to the wanted columns, and give the columns that it has then.

    Args:
        batches: those that need them; the newest schema says how the table is laid out.
        properties: what the snapshot of a conversion carries: the mark as it is.

    Raises:
        SchemaMismatch: a type cannot change as wanted.
    """
    current = table.columns()
    evolution = evolve(current, wanted)
    if evolution.added:
        added = ", ".join(definition(column) for column in evolution.added)
        spark.sql(f"ALTER TABLE {table.name} ADD COLUMNS ({added})")
    edited = edited_comments(table)
    for column in evolution.widened:
        spark.sql(
            f"ALTER TABLE {table.name} ALTER COLUMN `{column.name}` TYPE {spark_type(column.type)}"
        )
    table.refresh()
    if evolution.retyped:
        retype(spark, table, evolution, properties)
    if table.kind.may_partition:
        layout = wanted_layout(batches, evolution.columns)
        if layout is not None:
            keep_layout(spark, table, layout)
    table.record_columns(evolution.columns)
    said = {column.name: column.comment for column in wanted}
    keep_comments(table, said | edited)
    return table.columns()


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
