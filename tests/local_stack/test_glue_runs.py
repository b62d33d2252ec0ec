"""Glue on the emulator: real processes, and the truth about how they ended."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tests.support.waiting import DEPLOYED_S
from tools.local_stack.aws_emulator import Emulator, start_emulator
from tools.local_stack.spark_versions import imported_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.emulator, pytest.mark.timeout(DEPLOYED_S)]

ROLE = "glue-runs"
ICEBERG = (
    "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    " --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog"
    " --conf spark.sql.catalog.lake.catalog-impl=org.apache.iceberg.aws.glue.GlueCatalog"
    " --conf spark.sql.catalog.lake.io-impl=org.apache.iceberg.aws.s3.S3FileIO"
    " --conf spark.sql.catalog.lake.warehouse=s3://lake/warehouse"
)
MERGE_SCRIPT = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.range(1000).selectExpr("id", "id * 2 as v")
rows.write.parquet("s3://lake/rows")
spark.sql("create database lake.ns")
spark.sql("create table lake.ns.t (id bigint, v bigint) using iceberg")
for _ in range(2):
    spark.read.parquet("s3://lake/rows").createOrReplaceTempView("s")
    spark.sql("merge into lake.ns.t t using s on t.id = s.id "
              "when matched then update set v = s.v + 1 when not matched then insert *")
(row,) = spark.sql("select count(*) n, sum(v) v from lake.ns.t").collect()
assert (row.n, row.v) == (1000, 1000 * 999 + 1000), row
"""


def _policy(**statement: Any) -> str:
    action = {"Action": "sts:AssumeRole"} if "Principal" in statement else {}
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **action, **statement}]}
    )


TLS_ONLY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": "arn:aws:s3:::lake/*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
    }
)
GLUE = "arn:aws:glue:us-east-1:000000000000"
CATALOGUE = _policy(
    Action="glue:*",
    Resource=[f"{GLUE}:catalog", f"{GLUE}:database/ns", f"{GLUE}:table/ns/*"],
)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with start_emulator(enforce_iam=True) as running:
        boto3.client("s3", **running.client_options()).create_bucket(Bucket="lake")
        boto3.client("s3", **running.client_options()).put_bucket_policy(
            Bucket="lake", Policy=TLS_ONLY
        )
        iam = boto3.client("iam", **running.client_options())
        iam.create_role(
            RoleName=ROLE, AssumeRolePolicyDocument=_policy(Principal={"Service": "glue"})
        )
        for name, allowed in (("s3", _policy(Action="s3:*", Resource="*")), ("glue", CATALOGUE)):
            iam.put_role_policy(RoleName=ROLE, PolicyName=name, PolicyDocument=allowed)
        yield running


def _job(emulator: Emulator, name: str, script: str, **properties: Any) -> Any:
    """A job of this script; returns the Glue client."""
    s3 = boto3.client("s3", **emulator.client_options())
    s3.put_object(Bucket="lake", Key=f"jobs/{name}.py", Body=script.encode())
    glue = boto3.client("glue", **emulator.client_options())
    glue.create_job(
        Name=name,
        Role=f"arn:aws:iam::000000000000:role/{ROLE}",
        Command={"Name": "glueetl", "ScriptLocation": f"s3://lake/jobs/{name}.py"},
        GlueVersion=imported_spark().glue,
        **properties,
    )
    return glue


def _ended(glue: Any, job: str, run_id: str) -> dict[str, Any]:
    while True:
        run: dict[str, Any] = glue.get_job_run(JobName=job, RunId=run_id)["JobRun"]
        if run["JobRunState"] not in {"STARTING", "RUNNING", "STOPPING"}:
            return run
        time.sleep(0.1)


def _run(glue: Any, job: str, **arguments: str) -> dict[str, Any]:
    named = {f"--{name}": value for name, value in arguments.items()}
    return _ended(glue, job, glue.start_job_run(JobName=job, Arguments=named)["JobRunId"])


def _wait_for_object(emulator: Emulator, key: str) -> None:
    s3 = boto3.client("s3", **emulator.client_options())
    while not s3.list_objects_v2(Bucket="lake", Prefix=key).get("KeyCount"):
        time.sleep(0.1)


def test_arguments_of_the_run_replace_those_of_the_job(emulator: Emulator) -> None:
    script = (
        "import sys, boto3\n"
        "boto3.client('s3').put_object(Bucket='lake', Key='argv', Body=repr(sys.argv[1:]))\n"
    )
    defaults = {"--table": "a", "--keep": "k"}
    glue = _job(emulator, "arguments", script, DefaultArguments=defaults)
    run = _run(glue, "arguments", table="b")
    body = boto3.client("s3", **emulator.client_options()).get_object(Bucket="lake", Key="argv")
    words = body["Body"].read().decode()
    assert run["JobRunState"] == "SUCCEEDED", run["ErrorMessage"]
    assert "'--table', 'b', '--keep', 'k'" in words
    assert f"'--JOB_RUN_ID', '{run['Id']}'" in words


def test_failed_script_fails_the_run_with_its_error_message(emulator: Emulator) -> None:
    glue = _job(emulator, "fails", "print('x' * 5000)\nraise ValueError('no such column')\n")
    run = _run(glue, "fails")
    assert run["JobRunState"] == "FAILED"
    assert run["ErrorMessage"].endswith("ValueError: no such column")
    log = emulator.folder / "logs" / "glue" / f"{run['Id']}.log"
    assert "xxxx" in log.read_text()


def test_missing_script_fails_the_run(emulator: Emulator) -> None:
    glue = _job(emulator, "missing", "")
    boto3.client("s3", **emulator.client_options()).delete_object(
        Bucket="lake", Key="jobs/missing.py"
    )
    run = _run(glue, "missing")
    assert run["JobRunState"] == "FAILED"
    assert "jobs/missing.py" in run["ErrorMessage"]


def test_second_concurrent_run_is_refused_by_default(emulator: Emulator) -> None:
    glue = _job(emulator, "alone", "import time; time.sleep(60)\n")
    first = glue.start_job_run(JobName="alone")["JobRunId"]
    with pytest.raises(glue.exceptions.ConcurrentRunsExceededException):
        glue.start_job_run(JobName="alone")
    glue.batch_stop_job_run(JobName="alone", JobRunIds=[first])
    assert _ended(glue, "alone", first)["JobRunState"] == "STOPPED"
    second = glue.start_job_run(JobName="alone")["JobRunId"]
    glue.batch_stop_job_run(JobName="alone", JobRunIds=[second])


def test_stopped_run_writes_nothing_more(emulator: Emulator) -> None:
    script = (
        "import time, boto3\n"
        "s3 = boto3.client('s3')\n"
        "s3.put_object(Bucket='lake', Key='stopped/begun')\n"
        "time.sleep(5)\n"
        "s3.put_object(Bucket='lake', Key='stopped/finished')\n"
    )
    glue = _job(emulator, "stopped", script, ExecutionProperty={"MaxConcurrentRuns": 2})
    run_id = glue.start_job_run(JobName="stopped")["JobRunId"]
    _wait_for_object(emulator, "stopped/begun")
    answer = glue.batch_stop_job_run(JobName="stopped", JobRunIds=[run_id, "jr_unknown"])
    assert [entry["JobRunId"] for entry in answer["SuccessfulSubmissions"]] == [run_id]
    assert answer["Errors"][0]["ErrorDetail"]["ErrorCode"] == "EntityNotFoundException"
    assert _ended(glue, "stopped", run_id)["JobRunState"] == "STOPPED"
    time.sleep(5)
    s3 = boto3.client("s3", **emulator.client_options())
    assert not s3.list_objects_v2(Bucket="lake", Prefix="stopped/finished").get("KeyCount")


def test_role_without_read_permission_fails_the_run(emulator: Emulator) -> None:
    iam = boto3.client("iam", **emulator.client_options())
    iam.create_role(
        RoleName="none", AssumeRolePolicyDocument=_policy(Principal={"Service": "glue"})
    )
    glue = _job(emulator, "refused", "")
    glue.update_job(
        JobName="refused",
        JobUpdate={
            "Role": "arn:aws:iam::000000000000:role/none",
            "Command": {"Name": "glueetl", "ScriptLocation": "s3://lake/jobs/refused.py"},
        },
    )
    assert "AccessDenied" in _run(glue, "refused")["ErrorMessage"]


@pytest.mark.spark
def test_spark_reads_parquet_from_s3_and_merges_into_iceberg(emulator: Emulator) -> None:
    imported_spark().jars()
    defaults = {"--conf": ICEBERG, "--datalake-formats": "iceberg"}
    glue = _job(emulator, "merge", MERGE_SCRIPT, DefaultArguments=defaults)
    run = _run(glue, "merge")
    assert run["JobRunState"] == "SUCCEEDED", run["ErrorMessage"]
