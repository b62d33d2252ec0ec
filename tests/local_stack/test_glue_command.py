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


def test_empty_conf_argument_gives_no_settings() -> None:
    assert chained_settings("") == []


def test_script_gets_every_argument_including_those_of_glue() -> None:
    submission = _submission(conf="a=1 --conf b=2", table="rows")
    assert command(submission, MACHINE)[1:] == [
        "/run/script/job.py", "--conf", "a=1 --conf b=2", "--table", "rows",
    ]  # fmt: skip


def test_every_iceberg_catalogue_uses_the_endpoint_of_the_emulator() -> None:
    settings = endpoint_settings([CATALOGUE, "spark.sql.catalog.lake.type=glue"], "http://e")
    assert "spark.sql.catalog.lake.glue.endpoint=http://e" in settings
    assert "spark.sql.catalog.lake.s3.endpoint=http://e" in settings
    assert "spark.hadoop.fs.s3a.endpoint=http://e" in settings


def test_iceberg_jar_is_added_only_if_the_job_requests_it() -> None:
    without = submit_arguments(_submission(), MACHINE)
    assert without[without.index("--driver-class-path") + 1] == "/jars/s3.jar"
    with_it = submit_arguments(_submission(datalake_formats="hudi,iceberg"), MACHINE)
    assert with_it[with_it.index("--driver-class-path") + 1] == "/jars/s3.jar:/jars/iceberg.jar"


def test_job_settings_override_cluster_settings() -> None:
    words = submit_arguments(_submission(conf="spark.sql.shuffle.partitions=9"), MACHINE)
    partitions = [word for word in words if word.startswith("spark.sql.shuffle.partitions=")]
    assert partitions[-1].endswith("=9")


def test_environment_has_role_credentials_endpoint_and_spark_arguments() -> None:
    variables = environment(_submission(), MACHINE, Credentials("key", "secret", "token"))
    assert variables["AWS_SESSION_TOKEN"] == "token"
    assert shlex.split(variables["PYSPARK_SUBMIT_ARGS"])[-1] == "pyspark-shell"
    assert variables["AWS_ENDPOINT_URL"] == MACHINE.endpoint


def test_python_path_has_folders_of_modules_and_archives_themselves() -> None:
    files = [Path("/m/one.py"), Path("/m/two.py"), Path("/m/lib.whl")]
    assert python_path(files, MACHINE) == [Path("/m"), Path("/m/lib.whl")]


def test_python_path_includes_the_spark_of_another_glue_version() -> None:
    machine = replace(MACHINE, spark_home=Path("/spark-4/pyspark"), packages=[Path("/spark-4")])
    assert python_path([Path("/m/one.py")], machine) == [Path("/m"), Path("/spark-4")]


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("PyArrow==26.0.1", "pyarrow"), ("a-b.c [x] >= 1", "a_b_c"), ("plain", "plain")],
)
def test_requirement_name_is_normalised(requirement: str, name: str) -> None:
    assert distribution_name(requirement) == name
