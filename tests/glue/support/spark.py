"""One Spark for all tests of the job, with an Iceberg catalogue in a folder."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

from lakesync_spark.common.scheduling import SCHEDULER
from lakesync_spark.common.session import apply_settings
from tests.glue.support.local_files import use_plain_files
from tools.local_stack.jars import SPARK_3_ICEBERG, SPARK_ICEBERG, SPARK_S3, ensure_jars
from tools.local_stack.java import java_home
from tools.local_stack.spark_classes import archive_options

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


def _jars() -> list[Path]:
    """Return the jars of whichever Spark is first on the path: Glue 6.0's, or Glue 5.1's.

    Those of S3 are for Iceberg's own S3, where catalogues read the tables' metadata themselves. All
    of them and in this order, since the archive of classes belongs to one class path.
    """
    s3 = ensure_jars(SPARK_S3)
    if pyspark.__version__ >= "4":
        return [*s3, *ensure_jars(SPARK_ICEBERG)]
    bundles = (jar for jar in s3 if jar.name.startswith("iceberg-aws-bundle"))
    return [*ensure_jars(SPARK_3_ICEBERG), *bundles]


def start_spark(folder: Path) -> SparkSession:
    """Start a session for small data: few threads, few partitions, no web pages."""
    jars = _jars()
    settings = {
        **SCHEDULER,
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        # Quick to start matters more here than quick when warm; and what is compiled once is kept.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
            # What a test leaves is garbage, seldom collected in a large space for what is new.
            "-Xms1g -Xmn600m " + " ".join(archive_options(jars))
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
