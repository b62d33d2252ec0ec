"""One Spark for all tests of the job, with an Iceberg catalogue in a folder."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lakesync_spark.common.scheduling import SCHEDULER
from lakesync_spark.common.session import apply_settings
from tests.glue.support.local_files import use_plain_files
from tools.local_stack.java import java_home
from tools.local_stack.spark_classes import archive_options
from tools.local_stack.spark_versions import imported_spark

if TYPE_CHECKING:
    from pathlib import Path

CATALOG = "lake"
BESIDE = "beside"
"""The same catalogue with a cache of its own, as another process would see it."""
ICEBERG = "org.apache.iceberg.spark.SparkCatalog"
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""To compile a plan takes longer than to interpret it over a few rows."""
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
"""Spark's own defaults; see the fixture `compiled`."""


def start_spark(folder: Path) -> SparkSession:
    """Start a session for small data: few threads, few partitions, no web pages."""
    version = imported_spark()
    settings = {
        **SCHEDULER,
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": ":".join(map(str, version.jars())),
        # Quick to start matters more here than quick when warm; and what is compiled once is kept.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
            # What a test leaves is garbage, seldom collected in a large space for what is new.
            "-Xms1g -Xmn600m " + " ".join(archive_options(version))
        ),
        "spark.python.daemon.module": "tests.glue.support.daemon",
        "spark.sql.shuffle.partitions": "2",
        **INTERPRETED,
        "spark.ui.enabled": "false",
        # Each plan is written out for those pages, shown or not.
        "spark.sql.ui.explainMode": "simple",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.local.dir": str(folder / "spark-local"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    for catalog in (CATALOG, BESIDE):
        settings |= {
            f"spark.sql.catalog.{catalog}": ICEBERG,
            f"spark.sql.catalog.{catalog}.type": "hadoop",
            f"spark.sql.catalog.{catalog}.warehouse": f"{folder}/warehouse",
        }
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Python in Spark is this one, and finds what this one finds.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*words, "pyspark-shell"])
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")
    apply_settings(spark)
    use_plain_files(spark)
    return spark
