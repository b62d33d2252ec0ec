"""Writing: every commit carries its mark, and is refused if the table changed in between."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync_spark.lake_table import LakeTable

_SESSION_PREFIX: Final = "spark.sql.iceberg.snapshot-property."


def overwrite(
    rows: DataFrame, table: LakeTable, filtered: Column, properties: Mapping[str, str]
) -> None:
    """Replace the rows that a filter selects; fails if any appeared there since `table` was read.

    Iceberg proves at the commit that no file that may match the filter was added or removed since
    the snapshot that `table` holds: of two runs that write the same range, one fails.
    """
    writer = rows.writeTo(table.name).option("isolation-level", "serializable")
    # A table without a snapshot is validated from its very beginning.
    if table.snapshot_id is not None:
        writer = writer.option("validate-from-snapshot-id", str(table.snapshot_id))
    for name, value in properties.items():
        writer = writer.option(f"snapshot-property.{name}", value)
    writer.overwrite(filtered)


@contextmanager
def commits_carrying(spark: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Let each commit in the block carry properties: SQL statements take no options."""
    names = {f"{_SESSION_PREFIX}{name}": value for name, value in properties.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)
