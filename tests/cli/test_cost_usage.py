"""`lakesync cost --from-usage`: the metrics of a deployed stack, on moto."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from lakesync.analysis.connection import USAGE, Aws
from lakesync.cli.cost.bill import CONNECTION_MINUTES, shipped
from lakesync.client.websocket_listener import RENEWED_S
from tests.support.command_lines import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REGION = "us-east-1"
STACK = "prod"
RESOURCES = {
    "AWS::Lambda::Function": "prod-push",
    "AWS::DynamoDB::Table": "prod-buffer",
    "AWS::SQS::Queue": "https://sqs.us-east-1.amazonaws.com/123456789012/prod-flush",
    "AWS::Logs::LogGroup": "prod-logs",
    "AWS::Glue::Job": "prod-materialise",
}


class Formation:
    """CloudFormation, for which moto needs what is not installed."""

    def describe_stacks(self, StackName: str) -> dict[str, Any]:  # noqa: N803 - boto3's own name
        """Return the stack."""
        return {"Stacks": [{"StackId": f"arn:aws:cloudformation:::stack/{StackName}/1"}]}

    def get_paginator(self, _: str) -> Formation:
        """Return what pages."""
        return self

    def paginate(self, **_: str) -> list[dict[str, Any]]:
        """Return the stack's resources in one page."""
        each = [
            {"ResourceType": kind, "PhysicalResourceId": name} for kind, name in RESOURCES.items()
        ]
        return [{"StackResourceSummaries": each}]


def make_resources() -> None:
    """Make the resources, of which nothing was used."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = boto3.client("iam").create_role(RoleName="r", AssumeRolePolicyDocument=trust)["Role"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", "handler = None")
    boto3.client("lambda").create_function(
        FunctionName="prod-push", MemorySize=1_024, Runtime="python3.13", Handler="app.handler",
        Role=role["Arn"], Code={"ZipFile": packed.getvalue()},
    )  # fmt: skip
    boto3.client("dynamodb").create_table(
        TableName="prod-buffer", BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
    )  # fmt: skip
    boto3.client("glue").create_job(Name="prod-materialise", Role="r", Command={"Name": "glueetl"})
    boto3.client("cloudwatch").put_metric_alarm(
        AlarmName="prod-bugs", MetricName="Bugs", Namespace="LakeSync", EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold", Period=300, Statistic="Sum", Threshold=0,
    )  # fmt: skip


@pytest.fixture
def stack(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stack with some resources, of which nothing was used."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    made = Aws.client
    monkeypatch.setattr(
        Aws,
        "client",
        lambda aws, name, **more: (
            Formation() if name == "cloudformation" else made(aws, name, **more)
        ),
    )
    with mock_aws():
        make_resources()
        yield


def used(namespace: str, metric: str, value: float, **dimensions: str) -> None:
    """Have CloudWatch hold a metric of yesterday."""
    boto3.client("cloudwatch", REGION).put_metric_data(
        Namespace=namespace,
        MetricData=[
            {
                "MetricName": metric,
                "Dimensions": [{"Name": key, "Value": each} for key, each in dimensions.items()],
                "Timestamp": datetime.now(tz=UTC) - timedelta(days=1, hours=1),
                "Value": value,
            }
        ],
    )


def said(*words: str) -> dict[str, Any]:
    """Return the answer for programs."""
    done = run("cost", "--from-usage", "--stack", STACK, *words, "--json")
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def amounts(answer: dict[str, Any]) -> dict[str, float]:
    """Return how much was billed of each thing."""
    return {line["unit"]: line["amount"] for line in answer["services"]}


def test_connection_minutes_are_the_clients_renewal_interval() -> None:
    assert CONNECTION_MINUTES == RENEWED_S / 60


@pytest.mark.usefixtures("stack")
def test_metrics_of_the_stack_are_priced_for_one_month() -> None:
    used("AWS/Lambda", "Invocations", 1_000, FunctionName="prod-push")
    used("AWS/Lambda", "Duration", 20_000, FunctionName="prod-push")
    used("AWS/Lambda", "Invocations", 5e9, FunctionName="another-stack's")
    used("AWS/DynamoDB", "ConsumedWriteCapacityUnits", 4_400, TableName="prod-buffer")
    used("AWS/SQS", "NumberOfEmptyReceives", 600, QueueName="prod-flush")
    used("AWS/Logs", "IncomingBytes", 1e9, LogGroupName="prod-logs")

    answer = said("--days", "3")

    billed = amounts(answer)
    assert billed["requests"] == 10_000
    assert billed["GB-s, arm64"] == pytest.approx(200)
    assert billed["write units"] == 44_000
    assert billed["requests, each 64 KB"] == 6_000
    assert billed["GB taken in"] == pytest.approx(10)
    assert answer["days"] == 3
    assert answer["floorUsd"] == pytest.approx(0.10 + 0.40)
    prices = shipped().of(REGION)
    expected = sum(
        prices[name].usd(amount)
        for name, amount in (
            ("lambda_requests", 10_000), ("lambda_gb_s", 200), ("dynamodb_writes", 44_000),
            ("sqs_requests", 6_000), ("logs_in_gb", 10), ("alarms", 1), ("secrets", 1),
        )
    )  # fmt: skip
    assert answer["usd"] == pytest.approx(expected, abs=0.001)


@pytest.mark.usefixtures("stack")
def test_usage_cost_is_shared_among_tenants_by_their_deltas() -> None:
    used("AWS/Lambda", "Invocations", 1_000_000, FunctionName="prod-push")
    for gateway, deltas in (("acme", 300), ("zoo", 100)):
        used("LakeSync", "DeltasIn", deltas, stack=STACK, gateway=gateway)
    used("LakeSync", "DeltasOut", 600, stack=STACK, gateway="acme")
    used("LakeSync", "DeltasIn", 9_999, stack="another", gateway="theirs")

    answer = said()

    acme, zoo = answer["tenants"]
    assert (acme["gateway"], acme["deltasIn"], acme["deltasOut"]) == ("acme", 300, 600)
    assert (zoo["gateway"], zoo["pushes"], zoo["deltasIn"]) == ("zoo", 1, 100)
    assert acme["usd"] == pytest.approx(9 * zoo["usd"], abs=0.01)
    shared = answer["usd"] - answer["floorUsd"]
    assert acme["usd"] + zoo["usd"] == pytest.approx(shared, abs=0.001)


@pytest.mark.usefixtures("stack")
def test_usage_cost_without_tenant_metrics_names_the_watching_parameter() -> None:
    done = run("cost", "--from-usage", "--stack", STACK)

    assert done.exit_code == 0, done.stderr
    assert "parameter Watching" in done.stdout


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--days 0", "--days is from 1 to 90 days, not 0"),
        ("--days 91", "--days is from 1 to 90 days, not 91"),
        ("--devices 5", "leave the description's options out"),
    ],
)
def test_invalid_days_and_description_options_are_refused_with_from_usage(
    words: str, sentence: str
) -> None:
    done = run("cost", "--from-usage", "--stack", STACK, *words.split())

    assert done.exit_code == USAGE
    assert sentence in done.stderr


@pytest.mark.usefixtures("empty_folder")
def test_from_usage_without_a_stack_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    done = run("cost", "--from-usage")

    assert done.exit_code == USAGE
    assert "--stack" in done.stderr
