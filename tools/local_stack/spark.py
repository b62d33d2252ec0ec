"""Spark on this machine as a Glue run gets it, also for a test or a benchmark's own session.

for name, value in spark_variables(tmp_path, emulator.endpoint, settings="a=1 --conf b=2").items():
    monkeypatch.setenv(name, value)
spark = SparkSession.builder.getOrCreate()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.local_stack import paths
from tools.local_stack.clients import REGION
from tools.local_stack.emulator.glue_command import (
    Credentials,
    Machine,
    Submission,
    environment,
)
from tools.local_stack.java import java_home
from tools.local_stack.spark_classes import archive_options
from tools.local_stack.spark_versions import DEFAULT, SparkVersion, imported_spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOWHERE = "http://127.0.0.1:9"


def local_machine(
    endpoint: str, spark: SparkVersion, *, java_options: Sequence[str] | None = None
) -> Machine:
    """What a run finds around it: the project's Python, a Spark with its jars, where AWS is.

    Args:
        endpoint: The emulator's URL.
        spark: The one of the run's Glue version.
        java_options: Instead of those that use the archive of Spark's classes.
    """
    kept = archive_options(spark)
    return Machine(
        python=paths.PROJECT_PYTHON,
        spark_home=spark.home,
        java_home=java_home(),
        spark_jars=spark.s3_jars(),
        iceberg_jars=spark.iceberg_jars(),
        endpoint=endpoint,
        region=REGION,
        java_options=kept if java_options is None else java_options,
        packages=() if spark == DEFAULT else (spark.packages,),
    )


def spark_variables(folder: Path, endpoint: str = NOWHERE, *, settings: str = "") -> dict[str, str]:
    """The environment variables under which a session of this process is like a Glue run's.

    Args:
        folder: Where Spark keeps its files.
        endpoint: The emulator's URL; nothing of AWS can be reached without.
        settings: As the value of a job's `--conf`: `a=1 --conf b=2`.
    """
    arguments = {"--conf": settings, "--datalake-formats": "iceberg"}
    submission = Submission(folder / "session.py", arguments, folder)
    variables = environment(
        submission, local_machine(endpoint, imported_spark()), Credentials("test", "test")
    )
    return {
        k: v for k, v in variables.items() if k.startswith(("AWS_", "JAVA_", "PYSPARK", "SPARK"))
    }
