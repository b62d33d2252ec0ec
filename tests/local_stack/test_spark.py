"""A Spark session of a test's own is like a Glue run's."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import DEPLOYED_S
from tools.local_stack import paths
from tools.local_stack.spark import spark_variables
from tools.local_stack.spark_versions import imported_spark

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql("create table lake.ns.t using iceberg as select 7 as seven")
assert spark.table("lake.ns.t").first().seven == 7
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
"""


@pytest.mark.spark
@pytest.mark.timeout(DEPLOYED_S)
def test_spark_session_has_iceberg_and_the_given_settings(tmp_path: Path) -> None:
    settings = (
        "spark.sql.shuffle.partitions=3"
        " --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog"
        " --conf spark.sql.catalog.lake.type=hadoop"
        f" --conf spark.sql.catalog.lake.warehouse={tmp_path}/warehouse"
    )
    answer = subprocess.run(
        [paths.PROJECT_PYTHON, "-c", SCRIPT],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(imported_spark().packages),
            **spark_variables(tmp_path, settings=settings),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
