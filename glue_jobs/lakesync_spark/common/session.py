"""The Spark session: Glue starts it; this module sets what the transforms rely on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from lakesync_spark.common.scheduling import SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS: Final[Mapping[str, str]] = {
    # The same values on every version of Spark, wherever it runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Java does not compile methods over 8,000 bytes, and a wide table's stage exceeds that: such a
    # stage runs operator by operator, a narrow one in one method.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Only the flush function writes these objects, once each: the schema need not be inferred.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
}


def start_session(name: str, catalogue: Mapping[str, str]) -> SparkSession:
    """Return the session of a job, with the settings in force.

    Args:
        catalogue: the Spark configuration of the lake's catalogue. It is not among Glue's
            arguments, which would expose its secret, and Glue does not allow setting it later.
    """
    builder = SparkSession.builder.appName(name)
    for setting, value in {**SCHEDULER, **catalogue}.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    apply_settings(spark)
    if packages := os.environ.get("LAKESYNC_PACKAGES"):  # executors import them too
        spark.sparkContext.addPyFile(packages)
    return spark


def apply_settings(spark: SparkSession) -> None:
    """Put the settings in force in a session that exists."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
