"""Makes the archive of Spark's classes that `spark_classes.py` tells Java to use."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from tools.local_stack import paths
from tools.local_stack.aws_emulator import start_emulator
from tools.local_stack.emulator.glue_command import (
    Credentials,
    Submission,
    environment,
    submit_arguments,
)
from tools.local_stack.processes import start_detached
from tools.local_stack.spark import local_machine
from tools.local_stack.spark_classes import archive_path
from tools.local_stack.spark_versions import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT_SECONDS = 300
_CATALOGUE = "spark.sql.catalog.lake"
_SETTINGS = (
    "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    f" --conf {_CATALOGUE}=org.apache.iceberg.spark.SparkCatalog"
    f" --conf {_CATALOGUE}.catalog-impl=org.apache.iceberg.aws.glue.GlueCatalog"
    f" --conf {_CATALOGUE}.io-impl=org.apache.iceberg.aws.s3.S3FileIO"
    f" --conf {_CATALOGUE}.warehouse=s3://lake/warehouse"
)
# What a run of the product does, in small: Parquet from S3, a fold, a MERGE, an append.
_SCRIPT = """
from pyspark.sql import SparkSession, Window, functions as F
spark = SparkSession.builder.getOrCreate()
rows = spark.range(2000).selectExpr("id % 500 as id", "id as hlc", "array(id) as a", "'x' as v")
rows.write.parquet("s3://lake/rows")
spark.sql("create database lake.ns")
for table in ("state", "changes"):
    spark.sql(f"create table lake.ns.{table} (id bigint, hlc bigint, a array<bigint>, v string) "
              "using iceberg tblproperties ('write.merge.mode'='merge-on-read')")
for _ in range(2):
    read = spark.read.parquet("s3://lake/rows")
    read.writeTo("lake.ns.changes").append()
    first = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("hlc")))
    read.withColumn("n", first).where("n = 1").drop("n").createOrReplaceTempView("source")
    spark.sql("merge into lake.ns.state t using source s on t.id = s.id "
              "when matched and s.hlc > t.hlc - 1 then update set * when not matched then insert *")
spark.table("lake.ns.state").groupBy("v").agg(F.count("*"), F.max("hlc")).collect()
"""


def ensure_archive(*, wait: bool = True) -> None:
    """Make the archive unless it is there; a Java that cannot make one is not asked again.

    Args:
        wait: For another process that is making it. Otherwise leave it to that one.
    """
    archive = archive_path(DEFAULT)
    with (paths.JARS / ".archive-lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return
        if archive.exists():
            return
        for old in paths.JARS.glob("spark-classes-*"):
            old.unlink()
        started = time.monotonic()
        print("spark: keeping its classes for faster starts …", flush=True)
        _make(archive)
        print(f"spark: done after {time.monotonic() - started:.1f} s", flush=True)


def start_in_background(log: Path) -> None:
    """Let another process make the archive while this one has other things to do."""
    if archive_path(DEFAULT).exists():
        return
    start_detached(
        ["nice", sys.executable, "-m", "tools.local_stack.class_archive"],
        environment=os.environ,
        folder=paths.ROOT,
        log=log,
    )


def _make(archive: Path) -> None:
    """Run a small job on an emulator of its own, with Java writing the archive at its end."""
    draft = archive.with_suffix(".draft")
    with _scratch() as folder, start_emulator() as emulator:
        boto3.client("s3", **emulator.client_options()).create_bucket(Bucket="lake")
        script = folder / "warm.py"
        script.write_text(_SCRIPT)
        arguments = {"--conf": _SETTINGS, "--datalake-formats": "iceberg"}
        submission = Submission(script, arguments, folder)
        machine = local_machine(
            emulator.endpoint,
            DEFAULT,
            java_options=("-Xlog:disable", f"-XX:ArchiveClassesAtExit={draft}"),
        )
        # spark-submit here, because it ends only when Java has ended and the archive is written.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [
                    machine.spark_home / "bin" / "spark-submit",
                    *submit_arguments(submission, machine)[:-1],
                    script,
                ],
                cwd=folder,
                env=environment(submission, machine, Credentials("test", "test")),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_LIMIT_SECONDS,
            )
    if draft.exists():
        draft.replace(archive)
    else:
        archive.touch()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lakesync-warm-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    ensure_archive(wait=False)
