"""The Spark session: Glue starts it; here it gets the settings that the transforms rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS: Final[Mapping[str, str]] = {
    # The same values on every version of Spark, wherever it runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # One method for a whole stage is too long to be compiled well once a table is wide: Java gives
    # up on methods over 8,000 bytes, and works a second for each smaller one, again and again.
    "spark.sql.codegen.wholeStage": "false",
    # The flush function writes the objects once, and nothing else: no need to look for a schema.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1024",
}


def start_session() -> SparkSession:
    """Give the session, with the settings in force."""
    spark = SparkSession.builder.appName("materialise_iceberg").getOrCreate()
    apply_settings(spark)
    return spark


def apply_settings(spark: SparkSession) -> None:
    """Put the settings in force in a session that exists."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
