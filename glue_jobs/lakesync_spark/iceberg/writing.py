"""Commits to a lake table: with a batch mark, and only if the table did not change in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.java_gateway import ensure_callback_server_started

from lakesync_spark.common.java import java_class

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from lakesync_spark.iceberg.lake_table import LakeTable


_starting = threading.Lock()
"""Several tables are written at once, and there is one server for all."""


def overwrite(
    rows: DataFrame, table: LakeTable, filtered: Column, properties: Mapping[str, str]
) -> None:
    """Replace the rows that a filter selects; fails if any appeared since `table` was read.

    Iceberg validates at the commit that no file that may match the filter was added or removed
    since the snapshot of `table`: of two runs that write the same range, one fails.
    """
    writer = rows.writeTo(table.name).option("isolation-level", "serializable")
    # A table without a snapshot is validated from its very beginning.
    if table.snapshot_id is not None:
        writer = writer.option("validate-from-snapshot-id", str(table.snapshot_id))
    for name, value in properties.items():
        writer = writer.option(f"snapshot-property.{name}", value)
    writer.overwrite(filtered)


def execute(spark: SparkSession, statement: str, properties: Mapping[str, str]) -> None:
    """Execute a statement whose commit carries properties: SQL takes no options.

    Iceberg hands them from a thread of Java to the commits that it makes, so the statement is run
    by a call back from there. Newer versions take settings of the session instead; Glue 5.1's does
    not, and two tables may be written in one session.
    """
    started: Any = ensure_callback_server_started
    with _starting:
        started(spark.sparkContext._gateway)  # noqa: SLF001
    call = _Call(lambda: spark.sql(statement))
    failure = java_class(spark, "java.lang.Class").forName("java.lang.RuntimeException")
    metadata = java_class(spark, "org.apache.iceberg.spark.CommitMetadata")
    metadata.withCommitProperties(dict(properties), call, failure)
    if call.error is not None:
        raise call.error


class _Call:
    """A callback from Java. It keeps the Python error, which Java would replace by its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.error: BaseException | None = None

    def call(self) -> None:
        """Do the work; what goes wrong is kept in `error`."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `execute`
            self.error = error

    class Java:
        """What py4j looks for."""

        implements: ClassVar = ["java.util.concurrent.Callable"]
