"""What a deployed stack used: CloudWatch's metrics of its resources, as events that have a price.

Only reads: metrics, the stack's resources, sizes of tables, runs of Glue. What AWS publishes no
metric of is estimated, and says so: minutes of connections, transitions, requests of S3.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.cost.counts import MERGE_READS, MERGE_WRITES, Count
from lakesync.cli.cost.model import MONTH_DAYS, SECRETS, SWEEP_TRANSITIONS, Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from lakesync.cli.connection import Aws

DAYS_MAX: Final = 90
"""Days that `lakesync cost --from-usage` looks back: Glue keeps its runs for so long."""
QUERIES_MAX: Final = 500
"""Metrics that one request of CloudWatch gives."""
CONNECTION_MINUTES: Final = 114
"""Of a connection until its client renews it; one that ends before is counted too long."""
_DAY_S: Final = 86_400
_NAMESPACE: Final = "LakeSync"


class Meter(NamedTuple):
    """A metric of a resource, and what it is on the bill."""

    kind: str
    namespace: str
    dimension: str
    metric: str
    price: str
    each: float = 1.0
    """How many of what is billed one of the metric is."""
    estimated: bool = False


_LAMBDA, _TABLE = "AWS::Lambda::Function", "AWS::DynamoDB::Table"
_API, _QUEUE = "AWS::ApiGatewayV2::Api", "AWS::SQS::Queue"
METERS: Final = (
    Meter(_LAMBDA, "AWS/Lambda", "FunctionName", "Invocations", "lambda_requests"),
    Meter(_LAMBDA, "AWS/Lambda", "FunctionName", "Duration", "lambda_gb_s", 1e-3),
    Meter(_TABLE, "AWS/DynamoDB", "TableName", "ConsumedWriteCapacityUnits", "dynamodb_writes"),
    Meter(_TABLE, "AWS/DynamoDB", "TableName", "ConsumedReadCapacityUnits", "dynamodb_reads"),
    Meter(_API, "AWS/ApiGateway", "ApiId", "Count", "http_requests"),
    Meter(_API, "AWS/ApiGateway", "ApiId", "MessageCount", "socket_messages"),
    Meter(
        _API, "AWS/ApiGateway", "ApiId", "ConnectCount", "socket_minutes", CONNECTION_MINUTES,
        estimated=True,
    ),
    Meter(_QUEUE, "AWS/SQS", "QueueName", "NumberOfEmptyReceives", "sqs_requests"),
    Meter(_QUEUE, "AWS/SQS", "QueueName", "NumberOfMessagesSent", "sqs_requests"),
    Meter(_QUEUE, "AWS/SQS", "QueueName", "NumberOfMessagesReceived", "sqs_requests"),
    Meter(_QUEUE, "AWS/SQS", "QueueName", "NumberOfMessagesDeleted", "sqs_requests"),
    Meter("AWS::Logs::LogGroup", "AWS/Logs", "LogGroupName", "IncomingBytes", "logs_in_gb", 1e-9),
    Meter(
        "AWS::StepFunctions::StateMachine", "AWS/States", "StateMachineArn", "ExecutionsStarted",
        "transitions", SWEEP_TRANSITIONS, estimated=True,
    ),
)  # fmt: skip


class Tenant(NamedTuple):
    """What one gateway used, by its own metrics."""

    gateway: str
    pushes: float
    deltas_in: float
    deltas_out: float


def used_events(aws: Aws, days: int, now: datetime) -> list[Event]:
    """Return what the stack used in the last days, as of a month of 30 days."""
    resources = _resources(aws)
    scale = MONTH_DAYS / days
    every = [*_metered(aws, resources, days, now), *_announced(aws, days, now)]
    every += _glue(aws, resources.get("AWS::Glue::Job", []), days, now)
    scaled = [event._replace(times=event.times * scale) for event in every]
    return [*_fixed(aws), *scaled, *_sizes(aws, resources.get(_TABLE, []))]


def tenants(aws: Aws, days: int, now: datetime) -> list[Tenant]:
    """Return what each gateway used, the busiest first; none without ``gateways`` watched."""
    client = aws.client("cloudwatch")
    stack = [{"Name": "stack", "Value": aws.stack}]
    pages = client.get_paginator("list_metrics").paginate(
        Namespace=_NAMESPACE, MetricName="DeltasIn", Dimensions=stack
    )
    gateways = {
        each["Value"]
        for page in pages
        for metric in page["Metrics"]
        for each in metric["Dimensions"]
        if each["Name"] == "gateway"
    }
    asked = []
    for gateway in sorted(gateways):
        own = [*stack, {"Name": "gateway", "Value": gateway}]
        for name, statistic in (
            ("DeltasIn", "SampleCount"), ("DeltasIn", "Sum"), ("DeltasOut", "Sum"),
        ):  # fmt: skip
            asked.append((_NAMESPACE, name, own, statistic))
    sums = _sums(aws, asked, days, now)
    each = [
        Tenant(gateway, *sums[3 * place : 3 * place + 3])
        for place, gateway in enumerate(sorted(gateways))
    ]
    return sorted(each, key=lambda one: -(one.deltas_in + one.deltas_out))


def _resources(aws: Aws) -> dict[str, list[str]]:
    """Return the names of the stack's resources by their type."""
    client = aws.client("cloudformation")
    pages = client.get_paginator("list_stack_resources").paginate(StackName=aws.stack_id)
    by_type: dict[str, list[str]] = {}
    for page in pages:
        for one in page["StackResourceSummaries"]:
            if name := one.get("PhysicalResourceId"):
                by_type.setdefault(one["ResourceType"], []).append(name)
    return by_type


def _metered(
    aws: Aws, resources: dict[str, list[str]], days: int, now: datetime
) -> Iterator[Event]:
    """Yield what the meters say, summed over the resources of their type."""
    memory = {name: _memory_gb(aws, name) for name in resources.get(_LAMBDA, [])}
    asked, weights, meters = [], [], []
    for meter in METERS:
        for name in resources.get(meter.kind, []):
            value = name.rpartition("/")[2] if meter.kind == _QUEUE else name
            dimensions = [{"Name": meter.dimension, "Value": value}]
            asked.append((meter.namespace, meter.metric, dimensions, "Sum"))
            weights.append(memory[name] if meter.price == "lambda_gb_s" else 1.0)
            meters.append(meter)
    totals: dict[Meter, float] = {}
    for meter, weight, total in zip(meters, weights, _sums(aws, asked, days, now), strict=True):
        totals[meter] = totals.get(meter, 0) + weight * total
    for meter, total in totals.items():
        said = "estimated from" if meter.estimated else "metric"
        what = f"{meter.namespace} {meter.metric}"
        yield Event(what, total, Count({meter.price: meter.each}, f"{said} {meter.metric}"))


def _memory_gb(aws: Aws, function: str) -> float:
    answer = aws.client("lambda").get_function_configuration(FunctionName=function)
    return float(answer["MemorySize"]) / 1_024


def _announced(aws: Aws, days: int, now: datetime) -> Iterator[Event]:
    """Yield what batches ask of S3, of which there is no metric."""
    dimensions = [{"Name": "service", "Value": "flush"}, {"Name": "stack", "Value": aws.stack}]
    (batches,) = _sums(aws, [(_NAMESPACE, "BatchesAnnounced", dimensions, "Sum")], days, now)
    count = Count({"s3_writes": 2 + MERGE_WRITES, "s3_reads": MERGE_READS}, "estimated")
    yield Event("batches on S3 (estimated)", batches, count)


def _glue(aws: Aws, jobs: Sequence[str], days: int, now: datetime) -> Iterator[Event]:
    """Yield the DPU-hours of the runs that began in these days."""
    since, client = now - timedelta(days=days), aws.client("glue")
    for job in jobs:
        hours = 0.0
        for page in client.get_paginator("get_job_runs").paginate(JobName=job):
            runs = [run for run in page["JobRuns"] if run["StartedOn"] >= since]
            hours += sum(map(_dpu_s, runs)) / 3_600
            if len(runs) < len(page["JobRuns"]):
                break  # the latest come first
        yield Event(f"runs of {job}", hours, Count({"dpu_hours": 1}, "runs"))


def _dpu_s(run: dict[str, Any]) -> float:
    return float(run.get("DPUSeconds") or run.get("ExecutionTime", 0) * run.get("MaxCapacity", 2))


def _fixed(aws: Aws) -> Iterator[Event]:
    """Yield what is charged whatever is used, and is no metric."""
    client = aws.client("cloudwatch")
    pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=aws.stack)
    alarms = sum(len(page.get("MetricAlarms", [])) for page in pages)
    yield Event("alarms", alarms, Count({"alarms": 1}, "describe_alarms"), is_floor=True)
    yield Event("secret that signs tokens", SECRETS, Count({"secrets": 1}, "one"), is_floor=True)


def _sizes(aws: Aws, tables: Sequence[str]) -> Iterator[Event]:
    """Yield the bytes of tables, with their backup."""
    client = aws.client("dynamodb")
    size = sum(client.describe_table(TableName=name)["Table"]["TableSizeBytes"] for name in tables)
    kept = Count({"dynamodb_gb": 1, "pitr_gb": 1}, "describe_table")
    yield Event("GB of rows and log", size / 1e9, kept)


_Asked = tuple[str, str, list[dict[str, str]], str]


def _sums(aws: Aws, asked: Sequence[_Asked], days: int, now: datetime) -> list[float]:
    """Return the total of each metric over the last days, in the order asked."""
    client, totals = aws.client("cloudwatch"), [0.0] * len(asked)
    for at in range(0, len(asked), QUERIES_MAX):
        queries = [
            {
                "Id": f"m{place}",
                "MetricStat": {
                    "Metric": {"Namespace": space, "MetricName": name, "Dimensions": dimensions},
                    "Period": _DAY_S,
                    "Stat": statistic,
                },
            }
            for place, (space, name, dimensions, statistic) in enumerate(
                asked[at : at + QUERIES_MAX], at
            )
        ]
        pages = client.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries, StartTime=now - timedelta(days=days), EndTime=now
        )
        for page in pages:
            for result in page["MetricDataResults"]:
                totals[int(result["Id"][1:])] += sum(result["Values"])
    return totals
