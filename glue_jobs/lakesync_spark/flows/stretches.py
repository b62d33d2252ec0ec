"""Reads stretches of a table in Spark tasks: one task, one stretch, separate connections."""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.connectors.large_polls import StretchRead, read_stretch
from lakesync.errors import AdapterFailed, LakeSyncError
from lakesync_spark.common.report import reason_of
from lakesync_spark.common.scheduling import table_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lakesync.connectors.large_polls import Work
    from lakesync.connectors.poll import Route
    from lakesync.connectors.port import Stretch

KEEP_S: Final = 15
"""The interval of renewals of the lease: an eighth of its duration."""


class SparkStretches:
    """`lakesync.connectors.large_polls.ReadsStretches` on Spark.

    Args:
        opens: opens a task's source and destination, where the task runs.
    """

    def __init__(
        self, spark: SparkSession, opens: Callable[[Work], Route], keep_s: float = KEEP_S
    ) -> None:
        self._spark = spark
        self._opens = opens
        self._keep_s = keep_s

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> Sequence[StretchRead]:
        """Read stretches, each in a task.

        Raises:
            AdapterFailed: a task did not complete; its stretch is read again.
            LakeSyncError: the error of ``keep``; tasks are cancelled.
        """
        context = self._spark.sparkContext
        with table_threads(self._spark, 1) as threads:
            reading = threads.submit(
                lambda: (
                    context.parallelize(stretches, len(stretches))
                    .map(partial(_read, self._opens, work))
                    .collect()
                )
            )
            try:
                while not wait([reading], timeout=self._keep_s).done:
                    keep()
            except BaseException:
                context.cancelAllJobs()
                raise
        try:
            return reading.result()
        except Exception as error:
            raise AdapterFailed(f"a stretch was not read: {reason_of(error)}") from error


# --- in the tasks ---------------------------------------------------------------------------------


def _read(opens: Callable[[Work], Route], work: Work, stretch: Stretch) -> StretchRead:
    try:
        route = opens(work)
    except LakeSyncError as error:
        return StretchRead(0, error=error)
    with closing(route.connector), closing(route):
        return read_stretch(route, work, stretch, lambda: time.time_ns() // 1_000_000)
