"""What Glue does with a job's arguments."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tools.local_stack.emulator.glue_command import (
    Credentials,
    Machine,
    Submission,
    chained_settings,
    command,
    distribution_name,
    endpoint_settings,
    environment,
    python_path,
    submit_arguments,
)

CATALOGUE = "spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog"
MACHINE = Machine(
    python=Path("/venv/bin/python"),
    spark_home=Path("/spark"),
    java_home=Path("/java"),
    spark_jars=[Path("/jars/s3.jar")],
    iceberg_jars=[Path("/jars/iceberg.jar")],
    endpoint="http://127.0.0.1:4566",
    region="us-east-1",
)


def _submission(**arguments: str) -> Submission:
    named = {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Submission(Path("/run/script/job.py"), named, Path("/run"))


def test_settings_are_chained_inside_one_argument() -> None:
    assert chained_settings("a=1 --conf b=x=y --conf 'c=two words'") == [
        "a=1",
        "b=x=y",
        "c=two words",
    ]


def test_a_job_without_settings_has_none() -> None:
    assert chained_settings("") == []


def test_the_script_gets_every_argument_also_those_that_glue_reads_itself() -> None:
    submission = _submission(conf="a=1 --conf b=2", table="rows")
    assert command(submission, MACHINE)[1:] == [
        "/run/script/job.py", "--conf", "a=1 --conf b=2", "--table", "rows",
    ]  # fmt: skip


def test_each_iceberg_catalogue_is_led_to_the_emulator() -> None:
    settings = endpoint_settings([CATALOGUE, "spark.sql.catalog.lake.type=glue"], "http://e")
    assert "spark.sql.catalog.lake.glue.endpoint=http://e" in settings
    assert "spark.sql.catalog.lake.s3.endpoint=http://e" in settings
    assert "spark.hadoop.fs.s3a.endpoint=http://e" in settings


def test_iceberg_is_there_only_if_the_job_asks_for_it() -> None:
    without = submit_arguments(_submission(), MACHINE)
    assert without[without.index("--driver-class-path") + 1] == "/jars/s3.jar"
    with_it = submit_arguments(_submission(datalake_formats="hudi,iceberg"), MACHINE)
    assert with_it[with_it.index("--driver-class-path") + 1] == "/jars/s3.jar:/jars/iceberg.jar"


def test_the_jobs_own_settings_come_after_the_clusters() -> None:
    words = submit_arguments(_submission(conf="spark.sql.shuffle.partitions=9"), MACHINE)
    partitions = [word for word in words if word.startswith("spark.sql.shuffle.partitions=")]
    assert partitions[-1].endswith("=9")


def test_the_environment_holds_the_roles_credentials_and_spark_s_arguments() -> None:
    variables = environment(_submission(), MACHINE, Credentials("key", "secret", "token"))
    assert variables["AWS_SESSION_TOKEN"] == "token"
    assert shlex.split(variables["PYSPARK_SUBMIT_ARGS"])[-1] == "pyspark-shell"
    assert variables["AWS_ENDPOINT_URL"] == MACHINE.endpoint


def test_modules_are_found_by_folder_and_archives_by_themselves() -> None:
    files = [Path("/m/one.py"), Path("/m/two.py"), Path("/m/lib.whl")]
    assert python_path(files, MACHINE) == [Path("/m"), Path("/m/lib.whl")]


def test_a_spark_of_another_glue_version_is_found_before_the_environments() -> None:
    machine = replace(MACHINE, spark_home=Path("/spark-4/pyspark"), packages=[Path("/spark-4")])
    assert python_path([Path("/m/one.py")], machine) == [Path("/m"), Path("/spark-4")]


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("PyArrow==26.0.1", "pyarrow"), ("a-b.c [x] >= 1", "a_b_c"), ("plain", "plain")],
)
def test_a_requirement_s_name_is_normalised(requirement: str, name: str) -> None:
    assert distribution_name(requirement) == name
