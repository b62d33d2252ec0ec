"""Spark's classes, loaded once and kept: a third less processor time for every run that follows.

Java can write the classes that a program loaded into an archive, and map them the next time. The
archive belongs to one Java and one class path; to any other it is as if it were not there.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tools.local_stack import paths
from tools.local_stack.java import java_home

if TYPE_CHECKING:
    from pathlib import Path

    from tools.local_stack.spark_versions import SparkVersion


def archive_path(spark: SparkVersion) -> Path:
    """Where the archive for this Java and this Spark with its jars is, made or not."""
    key = hashlib.sha256(repr((java_home(), spark.home, spark.jars())).encode()).hexdigest()
    return paths.JARS / f"spark-classes-{key[:16]}.jsa"


def archive_options(spark: SparkVersion) -> tuple[str, ...]:
    """The Java options that use the archive, none while there is no archive."""
    archive = archive_path(spark)
    if not archive.exists() or not archive.stat().st_size:
        return ()
    return ("-Xlog:disable", "-Xshare:auto", f"-XX:SharedArchiveFile={archive}")
