"""Threads whose Spark jobs share the executors evenly: each has a pool of Spark's fair scheduler.

Without separate pools the jobs of all threads share one queue, and a large table delays those after
it. Each Python thread is a Java thread here, so a pool is a thread's own.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lakesync_spark.common.java import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEDULER: Final = {"spark.scheduler.mode": "FAIR"}
"""What the context must be started with."""
_POOL: Final = "spark.scheduler.pool"


def table_threads(spark: SparkSession, count: int, pool: str | None = None) -> ThreadPoolExecutor:
    """Return threads whose jobs run in a pool, or each in one of its own."""
    sessions = java_class(spark, "org.apache.spark.sql.SparkSession")
    # PySpark activates a session only in its own thread.
    session: Any = spark._jsparkSession  # noqa: SLF001

    def begin() -> None:
        # Iceberg's actions use the active session of their thread.
        sessions.setActiveSession(session)
        name = pool or threading.current_thread().name
        spark.sparkContext.setLocalProperty(_POOL, name)

    return ThreadPoolExecutor(count, thread_name_prefix="table", initializer=begin)


def pool_of(spark: SparkSession) -> str | None:
    return spark.sparkContext.getLocalProperty(_POOL)
