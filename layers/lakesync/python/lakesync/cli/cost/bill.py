"""A bill: what a stack uses, or a deployed one used, at a Region's prices; and how it is shown.

What a deployed stack used are CloudWatch's metrics of its resources, as events that have a price.
Only reads: metrics, the stack's resources, sizes of tables, runs of Glue. What AWS publishes no
metric of is estimated, and says so: minutes of connections, transitions, requests of S3.

Prices are from one dated file in which each has its unit and its source: `prices.json` has those of
the Regions that we could check. Whoever is in another gives a file of the same form: `template`
makes it, and only the prices of what is on the bill need be filled in.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import date, timedelta
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.analysis.connection import UsageFault, paged, stack_resources
from lakesync.cli.cost import MONTH_DAYS, SECRETS, SWEEP_TRANSITIONS, Event, events
from lakesync.cli.cost.counts import MERGE_READS, MERGE_WRITES, Count
from lakesync.cli.input_output import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from lakesync.analysis.connection import Aws
    from lakesync.cli.cost import Description
    from lakesync.cli.input_output import Output

# --- what a deployed stack used -------------------------------------------------------------------


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
    wanted = {"Namespace": _NAMESPACE, "MetricName": "DeltasIn", "Dimensions": stack}
    gateways = {
        one["Value"]
        for metric in paged(client, "list_metrics", "Metrics", **wanted)
        for one in metric["Dimensions"]
        if one["Name"] == "gateway"
    }
    asked = []
    for gateway in sorted(gateways):
        own = [*stack, {"Name": "gateway", "Value": gateway}]
        for name, statistic in (
            ("DeltasIn", "SampleCount"), ("DeltasIn", "Sum"), ("DeltasOut", "Sum"),
        ):  # fmt: skip
            asked.append((_NAMESPACE, name, own, statistic))
    sums = _sums(aws, asked, days, now)
    tenants = [
        Tenant(gateway, *sums[3 * place : 3 * place + 3])
        for place, gateway in enumerate(sorted(gateways))
    ]
    return sorted(tenants, key=lambda one: -(one.deltas_in + one.deltas_out))


def _resources(aws: Aws) -> dict[str, list[str]]:
    by_type: dict[str, list[str]] = {}
    for one in stack_resources(aws.client("cloudformation"), aws.stack_id):
        by_type.setdefault(one["ResourceType"], []).append(one["PhysicalResourceId"])
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
    named = {"AlarmNamePrefix": aws.stack}
    listed = paged(aws.client("cloudwatch"), "describe_alarms", "MetricAlarms", **named)
    alarms = sum(1 for _ in listed)
    yield Event("alarms", alarms, Count({"alarms": 1}, "describe_alarms"), is_floor=True)
    yield Event("secret that signs tokens", SECRETS, Count({"secrets": 1}, "one"), is_floor=True)


def _sizes(aws: Aws, tables: Sequence[str]) -> Iterator[Event]:
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
        asked_for = {
            "MetricDataQueries": queries, "StartTime": now - timedelta(days=days), "EndTime": now,
        }  # fmt: skip
        for result in paged(client, "get_metric_data", "MetricDataResults", **asked_for):
            totals[int(result["Id"][1:])] += sum(result["Values"])
    return totals


# --- prices ---------------------------------------------------------------------------------------


FILE: Final = Path(__file__).with_name("prices.json")
CURRENCY: Final = "USD"


class Price(NamedTuple):
    """The price of one thing in one Region."""

    service: str
    unit: str
    tiers: tuple[tuple[float, float], ...]
    """Up to how much in a month, and the price of one; the last has no end."""
    source: str

    def usd(self, amount: float) -> float:
        total = begun = 0.0
        for up_to, each in self.tiers:
            total += max(min(amount, up_to) - begun, 0.0) * each
            begun = up_to
        return total


class PriceList(NamedTuple):
    """Prices by Region, as they were read on one day."""

    file: str
    date: str
    regions: Mapping[str, Mapping[str, Price]]

    def of(self, region: str) -> Mapping[str, Price]:
        if region in self.regions:
            return self.regions[region]
        others = ", ".join(sorted(self.regions))
        shown = region[:30]
        raise UsageFault(
            f"the prices of {shown!r} are not known, only those of {others}: run lakesync cost "
            f"--print-prices --region {shown} > prices.json, fill it in from the pages that it "
            "names, and pass --prices prices.json"
        )


@cache
def shipped() -> PriceList:
    return read_prices(str(FILE))


def read_prices(file: str) -> PriceList:
    """Return the prices of a file; ``-`` is standard input.

    A price that is null, of all tiers, is not known; it is left out.
    """
    content = _object(read_json(file), file, "")
    if content.get("currency") != CURRENCY:
        raise UsageFault(f'{file}: currency must be "{CURRENCY}", as the bill is in dollars')
    regions = {
        region: {
            name: price
            for name, entry in _object(entries, file, f"regions.{region}").items()
            if (price := _price(entry, file, f"regions.{region}.{name}")) is not None
        }
        for region, entries in _object(content.get("regions"), file, "regions").items()
    }
    if not regions:
        raise UsageFault(f"{file}: regions has none")
    return PriceList(file, _day(content.get("date"), file), regions)


def template(region: str, today: date) -> dict[str, Any]:
    content: Any = read_json(str(FILE))
    known = content["regions"].get(region)
    entries = known or {
        name: _without_price(entry)
        for name, entry in next(iter(content["regions"].values())).items()
    }
    day = content["date"] if known else today.isoformat()
    return {"date": day, "currency": CURRENCY, "regions": {region: entries}}


def unpriced(names: Iterable[str]) -> str:
    known = shipped().regions
    prices = next(iter(known.values()))
    return "; ".join(
        f"{name} ({prices[name].service}, {prices[name].unit}; {prices[name].source})"
        for name in sorted(names)
    )


def _without_price(entry: Mapping[str, Any]) -> dict[str, Any]:
    tiers = [{**tier, "price": None} for tier in entry.get("tiers", ())]
    return {**entry, "price": None, **({"tiers": tiers} if tiers else {})}


def _price(given: object, file: str, place: str) -> Price | None:
    entry = _object(given, file, place)
    tiers = entry.get("tiers")
    if tiers is None:
        tiers = [{"price": entry.get("price")}]
    if not isinstance(tiers, list) or not tiers:
        raise UsageFault(f"{file}: {place}.tiers must be a list of tiers")
    steps = [_object(tier, file, f"{place}.tiers") for tier in tiers]
    if all(step.get("price") is None for step in steps):
        return None
    per = _number(entry.get("per"), file, f"{place}.per")
    if not per:
        raise UsageFault(f"{file}: {place}.per is 0: it is for how many units the price is")
    ends = [_number(step.get("up_to"), file, f"{place}.tiers.up_to") for step in steps[:-1]]
    if ends != sorted(set(ends)) or "up_to" in steps[-1]:
        raise UsageFault(
            f"{file}: {place}.tiers must follow each other by up_to, the last has none"
        )
    each = [_number(step.get("price"), file, f"{place}.price") / per for step in steps]
    texts = [entry.get(name) for name in ("service", "unit", "source")]
    for name, text in zip(("service", "unit", "source"), texts, strict=True):
        if not isinstance(text, str) or not text:
            raise UsageFault(f"{file}: {place}.{name} must be a text")
    service, unit, source = map(str, texts)
    return Price(service, unit, tuple(zip([*ends, math.inf], each, strict=True)), source)


def _number(value: object, file: str, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageFault(f"{file}: {place} must be a number, 0 or more, not {value!r:.40}")
    return float(value)


def _object(value: object, file: str, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageFault(f"{file}: {place or 'the file'} must be an object")
    return value


def _day(value: object, file: str) -> str:
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise UsageFault(
            f"{file}: date must be the day on which the prices were read, as 2026-11-20"
        ) from None


# --- the bill -------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One thing on the bill."""

    service: str
    unit: str
    amount: float
    usd: float
    floor_usd: float
    """How much of it is charged in any case."""


class Bill(NamedTuple):
    """A month's bill."""

    region: str
    prices_of: str
    """The day on which the prices were read."""
    lines: tuple[Line, ...]
    events: tuple[tuple[str, float, float], ...]
    """What happens, how often, and what it costs."""

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    @property
    def floor_usd(self) -> float:
        return sum(line.floor_usd for line in self.lines)


def bill(description: Description, region: str, prices: PriceList | None = None) -> Bill:
    """Return the bill of a description, at LakeSync's own prices if no list is given."""
    from lakesync.client.waits import HEARTBEAT_S
    from lakesync.client.websocket_listener import LATER, RENEWED_S

    every = events(description, HEARTBEAT_S * (1 + LATER / 2), RENEWED_S)
    return priced(every, region, prices)


def priced(every: Iterable[Event], region: str, prices: PriceList | None = None) -> Bill:
    source = prices or shipped()
    known = source.of(region)
    used = list(every)
    amounts = _amounts(used)
    if missing := {name for name, amount in amounts.items() if amount and name not in known}:
        raise UsageFault(f"{source.file} has no price in {region} of {unpriced(missing)}")
    floors = _amounts(event for event in used if event.is_floor)
    lines = [
        Line(price.service, price.unit, amount, price.usd(amount), price.usd(floors.get(name, 0)))
        for name, price in known.items()
        if (amount := amounts.get(name, 0))
    ]
    shares = _shares(amounts, known)
    happened = [(event.what, event.times, _usd(event, shares)) for event in used]
    return Bill(region, source.date, tuple(lines), tuple(happened))


def _amounts(every: Iterable[Event]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for event in every:
        for name, each in event.each.uses.items():
            amounts[name] = amounts.get(name, 0) + event.times * each
    return amounts


def _shares(amounts: Mapping[str, float], prices: Mapping[str, Price]) -> dict[str, float]:
    return {name: prices[name].usd(amount) / amount for name, amount in amounts.items() if amount}


def _usd(event: Event, shares: Mapping[str, float]) -> float:
    return sum(event.times * each * shares.get(name, 0) for name, each in event.each.uses.items())


# --- how it is shown ------------------------------------------------------------------------------


def as_json(bill: Bill, description: Description | None = None) -> dict[str, Any]:
    given = {} if description is None else {"description": asdict(description)}
    return {
        "region": bill.region,
        "pricesOf": bill.prices_of,
        "usd": round(bill.usd, 4),
        "floorUsd": round(bill.floor_usd, 4),
        "services": [_service(line) for line in bill.lines],
        "events": [
            {"event": what, "times": round(times, 3), "usd": round(usd, 4)}
            for what, times, usd in bill.events
        ],
        **given,
    }


def _service(line: Line) -> dict[str, object]:
    return {
        "service": line.service,
        "unit": line.unit,
        "amount": round(line.amount, 4),
        "usd": round(line.usd, 4),
        "floorUsd": round(line.floor_usd, 4),
    }


def shares(bill: Bill, tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
    """Return what each tenant used, and by its deltas its share of what depends on use."""
    deltas = sum(one.deltas_in + one.deltas_out for one in tenants)
    each = (bill.usd - bill.floor_usd) / deltas if deltas else 0
    return [
        {
            "gateway": one.gateway,
            "pushes": round(one.pushes),
            "deltasIn": round(one.deltas_in),
            "deltasOut": round(one.deltas_out),
            "usd": round(each * (one.deltas_in + one.deltas_out), 4),
        }
        for one in tenants
    ]


def show(out: Output, bill: Bill) -> None:
    out.table(
        ("service", "what is billed", "in a month", "$", "of it in any case"),
        [
            (line.service, line.unit, amount(line.amount), usd(line.usd), usd(line.floor_usd))
            for line in bill.lines
        ],
    )
    out.table(
        ("event", "times a month", "$"),
        [(what, amount(times), usd(cost)) for what, times, cost in bill.events],
    )
    totals = ", ".join(
        f"{service} {usd(sum(line.usd for line in lines))}"
        for service, lines in groupby(bill.lines, lambda line: line.service)
    )
    out.text(f"by service: {totals}")
    out.text(
        f"${usd(bill.usd)} a month, of which ${usd(bill.floor_usd)} in any case; {bill.region}, "
        f"prices of {bill.prices_of}, on demand, without free tier"
    )


def amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.3g}"  # noqa: PLR2004 - three digits


def usd(value: float) -> str:
    """Return dollars, with more digits where there are only cents."""
    return f"{value:,.2f}" if value >= 0.1 or not value else f"{value:.2g}"  # noqa: PLR2004 - ten cents
