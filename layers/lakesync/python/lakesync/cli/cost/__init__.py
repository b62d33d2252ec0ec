"""What a described stack uses in a month: event by event, and if nobody uses it. Pure.

A description has bounds and a unit for each input; a month has 30 days. What an event uses is in
`counts`, what that costs in `bill`. The numbers of resources are those of the template;
``tests/infrastructure/test_floor.py`` holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.analysis.connection import UsageFault
from lakesync.cli.cost import counts
from lakesync.cli.cost.counts import CALL_MS, COLD_MS, HANDLER_MS, S3_MS, Count, invoked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# --- a description --------------------------------------------------------------------------------


class Amount(NamedTuple):
    """An input that is a number."""

    least: float
    most: float
    unit: str
    words: str


class Choice(NamedTuple):
    """An input that is one of some words."""

    options: tuple[str, ...]
    words: str


AMOUNTS: Final[Mapping[str, Amount]] = {
    "devices": Amount(0, 10_000_000, "devices", "Devices in use, of all tenants together."),
    "tenants": Amount(0, 1_000_000, "gateways", "Gateways; 0: one for every ten devices."),
    "edits_per_hour": Amount(0, 3_600, "edits an hour", "Edits of one device in a busy hour."),
    "edits_per_push": Amount(1, 1_000, "edits", "Edits that one push takes along."),
    "hours_per_day": Amount(0, 24, "hours", "Busy hours of a day."),
    "receivers": Amount(
        -1, 100_000, "devices", "Devices that are sent each edit; -1: all others of the gateway."
    ),
    "poll_every_s": Amount(1, 86_400, "seconds", "Of polling: how often each device asks."),
    "tables": Amount(1, 1_000, "tables", "Tables of each gateway."),
    "row_bytes": Amount(1, 300_000, "bytes", "Bytes of one row."),
    "rows": Amount(0, 10_000_000_000, "rows", "Rows of all gateways; 0: one for each device."),
    "destinations": Amount(0, 50, "databases", "Databases that each gateway is delivered to."),
    "lake_every_minutes": Amount(2, 300, "minutes", "How often what waits is flushed."),
    "zones": Amount(1, 6, "zones", "Availability zones with a way to private databases."),
}
CHOICES: Final[Mapping[str, Choice]] = {
    "mode": Choice(
        ("real-time", "polling"),
        "How devices hear of edits: over WebSockets that are always open, or by asking.",
    ),
    "lake": Choice(
        ("none", "small-batches", "glue-runs"),
        "The lake: none, written by functions (the default of a stack), or by Glue alone, as where "
        "JobBounds begins with 0.",
    ),
    "private": Choice(
        ("none", "endpoints", "nat"),
        "The way from private databases' subnets to AWS: interface endpoints or NAT gateways.",
    ),
    "watching": Choice(("basic", "detailed"), "The stack's parameter Watching."),
    "alarm_encryption": Choice(
        ("none", "own-key"), "Whether the stack's parameter Watching has own-key."
    ),
    "tracing": Choice(("off", "on"), "Whether X-Ray samples requests: one a second, then 5 %."),
}
DEVICES_OF_A_GATEWAY: Final = 10
"""Where neither tenants nor receivers are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is to be priced; the defaults are a small team in real time, without a lake."""

    devices: float = 100
    tenants: float = 0
    edits_per_hour: float = 12
    edits_per_push: float = 1
    hours_per_day: float = 8
    receivers: float = -1
    mode: str = "real-time"
    poll_every_s: float = 30
    tables: float = 1
    row_bytes: float = 300
    rows: float = 0
    destinations: float = 0
    lake: str = "none"
    lake_every_minutes: float = 15
    private: str = "none"
    zones: float = 2
    watching: str = "basic"
    alarm_encryption: str = "none"
    tracing: str = "off"

    @property
    def gateways(self) -> float:
        """The gateways that have devices, at least one if there is a device."""
        return self.tenants or math.ceil(self.devices / DEVICES_OF_A_GATEWAY)

    @property
    def reached(self) -> float:
        """Devices that are sent each edit."""
        if self.receivers >= 0:
            return self.receivers
        return max(self.devices / self.gateways - 1, 0) if self.gateways else 0

    @property
    def stored_rows(self) -> float:
        return self.rows or self.devices


def described(given: Mapping[str, Any]) -> Description:
    """Return the description with these inputs, the others as by default."""
    known = {field.name for field in fields(Description)}
    values = {name: value for name, value in given.items() if value is not None and name in known}
    for name, value in values.items():
        if name in AMOUNTS:
            _check_amount(name, value, AMOUNTS[name])
        elif value not in CHOICES[name].options:
            options = " or ".join(CHOICES[name].options)
            raise UsageFault(f"{option(name)} {str(value)[:30]!r} is none: use {options}")
    description = Description(**values)
    if description.reached > max(description.devices - 1, 0):
        raise UsageFault(
            f"--receivers {description.reached:g} is more than the other devices there are: "
            f"{max(description.devices - 1, 0):g}"
        )
    if description.tenants > max(description.devices, 1) and description.edits_per_hour:
        raise UsageFault(
            f"--tenants {description.tenants:g} is more than --devices {description.devices:g}: "
            "each gateway that is edited has a device"
        )
    return description


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_amount(name: str, value: float, amount: Amount) -> None:
    if not math.isfinite(value) or not amount.least <= value <= amount.most:
        raise UsageFault(
            f"{option(name)} is from {amount.least:,g} to {amount.most:,g} {amount.unit}, "
            f"not {value:g}".replace(f"{amount.most:,g}", f"{amount.most:,.0f}")
        )


# --- what it uses ---------------------------------------------------------------------------------


LOG_MONTHS: Final = 1.0
"""LogRetentionDays of CloudWatch Logs, which stores a seventh of what it took in."""
LOG_STORED_SHARE: Final = 1 / 7
BUFFER_LOG_DAYS: Final = 7
"""LogKeepDays."""
ENTRY_BYTES: Final = 350
"""Of an item of the log, with its keys and DynamoDB's own 100 bytes."""
METRICS_IN_USE: Final = 6
"""Metrics of the stack and its functions while it is used: DeltasAccepted, BytesIn, DeltasPulled,
BytesOut, Connected, and the age of what waits."""
TRACED_S: Final = 3
"""Functions that a request passes, each of which X-Ray samples: one a second, then 5 %."""


class Event(NamedTuple):
    """Something that happens so many times in a month."""

    what: str
    times: float
    each: Count
    is_floor: bool = False


def events(description: Description, silent_s: float, renew_s: float) -> list[Event]:
    """Return everything that is on the bill.

    Args:
        silent_s: how long a connection is silent before its client sends a keep-alive, and every
            second time a pull.
        renew_s: how long a connection is kept.
    """
    floor = [
        Event(each.what, each.times, each.uses, is_floor=True) for each in charges(description)
    ]
    used = [*_edits(description), *_waiting(description, silent_s, renew_s)]
    used += [*_flushes(description), *_stored(description)]
    every = floor + [event for event in used if event.times]
    return [*every, *_logs(every), *_tracing(description, every)]


def pushes(description: Description) -> float:
    busy = description.hours_per_day * MONTH_DAYS
    edits = description.devices * description.edits_per_hour * busy
    return edits / description.edits_per_push


def _edits(description: Description) -> Iterator[Event]:
    times, edits = pushes(description), description.edits_per_push
    yield Event("pushes", times, counts.push(edits, description.row_bytes))
    pulled = times * counts.PULLS_OF_A_PUSH
    yield Event(
        "pulls behind pushes", pulled, counts.pull(edits * counts.FRAME_EDIT_BYTES, is_known=True)
    )
    if description.mode == "real-time":
        reached = description.reached
        yield Event("broadcasts", times if reached else 0, counts.broadcast(reached, edits))


def _waiting(description: Description, silent_s: float, renew_s: float) -> Iterator[Event]:
    month_s = MONTH_H * 3_600
    if description.mode == "polling":
        polls = description.devices * month_s / description.poll_every_s
        finding = min(pushes(description) * description.reached, polls)
        each = counts.pull(counts.FRAME_EDIT_BYTES * description.edits_per_push)
        yield Event("polls that find edits", finding, each)
        yield Event("polls that find nothing", polls - finding, counts.pull(0))
        return
    busy_s = description.hours_per_day * MONTH_DAYS * 3_600
    own = description.edits_per_hour / description.edits_per_push / 3_600
    heard = own * description.reached
    again = math.exp(-heard * silent_s)
    """How often one silence follows another: the second asks, and what is heard ends the row."""
    busy, idle = silences(heard, silent_s) * busy_s, (month_s - busy_s) / silent_s
    asked = busy * again / (1 + again) + idle / 2
    yield Event("keep-alives", description.devices * (busy + idle - asked), counts.KEEP_ALIVE)
    yield Event("checks for missed broadcasts", description.devices * asked, counts.ASKED)
    yield Event("minutes of connections", description.devices * month_s / 60, counts.MINUTE)
    yield Event("connections opened", description.devices * month_s / renew_s, counts.OPENED)


def silences(rate: float, after_s: float) -> float:
    """Return how often in a second a silence of ``after_s`` passes; its ends come at random.

    It comes ``rate`` times in a second; a silence begins anew when it has passed.
    """
    if not rate:
        return 1 / after_s
    left = math.exp(-rate * after_s)
    return rate * left / (1 - left)


def _flushes(description: Description) -> Iterator[Event]:
    has_lake = description.lake != "none"
    if not (description.destinations or has_lake) or not pushes(description):
        return
    busy_h = description.hours_per_day * MONTH_DAYS
    each_h = pushes(description) / description.gateways / busy_h
    every_h = min(60 / description.lake_every_minutes, each_h)
    flushes = description.gateways * busy_h * every_h
    edits = pushes(description) * description.edits_per_push / flushes
    tables = min(description.tables, max(edits, 1))
    yield Event(
        "flushes", flushes, counts.flush(tables, edits, description.destinations, lake=has_lake)
    )
    yield Event("deliveries", flushes * tables * description.destinations, counts.delivery())
    if has_lake:
        yield from _merges(description, flushes, tables, edits, busy_h * every_h)


def _merges(
    description: Description, flushes: float, tables: float, edits: float, intervals: float
) -> Iterator[Event]:
    """Yield merges into the lake, and the daily joining of its small files.

    Args:
        edits: of each flush; a table of which more than are small is left to a Glue run.
    """
    batches = flushes * tables
    by_function = description.lake == "small-batches" and edits / tables <= SMALL_BATCH_DELTAS
    many, announced = batches / intervals > FUNCTION_MERGES, counts.together(tables)
    merge = counts.merge(by_function=by_function, many=many, announced=announced)
    yield Event("merges into the lake", batches, merge)
    joined_s = max(counts.RUN_DPU_S, description.gateways * description.tables * counts.JOIN_DPU_S)
    joined = Count({"dpu_hours": joined_s / 3_600}, "estimate")
    yield Event("maintenance of the lake", MONTH_DAYS, joined)


FUNCTION_MERGES: Final = 10
"""Small batches that a function merges within its half minute."""
SMALL_BATCH_DELTAS: Final = 10_000
"""The first of JobBounds."""


def _stored(description: Description) -> Iterator[Event]:
    entries = pushes(description) / MONTH_DAYS * BUFFER_LOG_DAYS
    row = description.row_bytes + counts.ROW_OVERHEAD_BYTES + 100
    size = description.stored_rows * row + entries * ENTRY_BYTES
    yield Event(
        "GB of rows and log", size / 1e9, Count({"dynamodb_gb": 1, "pitr_gb": 1}, "documented")
    )
    if description.devices:
        yield Event("metrics", METRICS_IN_USE, Count({"metrics": 1}, "runtime/observe.py"))


def _logs(every: list[Event]) -> Iterator[Event]:
    taken = sum(event.times * event.each.uses.get("logs_in_gb", 0) for event in every)
    stored = taken * LOG_MONTHS * LOG_STORED_SHARE
    yield Event("logs kept", stored, Count({"logs_gb": 1}, "LogRetentionDays"), is_floor=False)


def _tracing(description: Description, every: list[Event]) -> Iterator[Event]:
    if description.tracing == "off":
        return
    requests = sum(event.times * event.each.uses.get("lambda_requests", 0) for event in every)
    sampled = min(requests, TRACED_S * MONTH_H * 3_600)
    traces = sampled + 0.05 * (requests - sampled)
    yield Event("traces", traces, Count({"traces": 1}, "documented: the default rule"))


# --- a stack that nobody uses ---------------------------------------------------------------------


ALARMS: Final = 29
DETAILED_ALARMS: Final = 13
"""Further ones with Watching=detailed, which also has a dashboard."""
SECRETS: Final = 1
POLLED_QUEUES: Final = 3
MONTH_DAYS: Final = 30
MONTH_H: Final = MONTH_DAYS * 24
POLLS: Final = MONTH_H * 3_600 / 20 * 5
"""Of a queue that is empty: five readers wait 20 s each. documented: Lambda with SQS."""
FLUSH_TICK_MINUTES: Final = 1
"""Each tick takes the gateways whose minute of the interval it is, so the function stays warm."""
SWEEP_EVERY_MINUTES: Final = 30
CONNECTIONS_EVERY_MINUTES: Final = 5
SWEEP_TRANSITIONS: Final = 3
"""Of the lake's sweep that finds nothing."""
DAILY_TRANSITIONS: Final = 12
"""Of maintenance and retention that find nothing, together."""
_TICK_LOG_BYTES: Final = 300


class Charge(NamedTuple):
    """Something that is charged in any case."""

    what: str
    uses: Count
    times: float = 1


def charges(description: Description) -> Iterator[Charge]:
    detailed = description.watching == "detailed"
    alarms = ALARMS + (DETAILED_ALARMS if detailed else 0)
    yield Charge("alarms", Count({"alarms": alarms}, "template"))
    if detailed:
        yield Charge("dashboard", Count({"dashboards": 1}, "template"))
    if description.alarm_encryption == "own-key":
        yield Charge("key of the alarms' topic", Count({"keys": 1}, "template"))
    yield Charge("secret that signs tokens", Count({"secrets": SECRETS}, "template"))
    yield Charge("polling of queues", Count({"sqs_requests": POLLS}, "documented"), POLLED_QUEUES)
    yield from _schedules()
    yield from _network(description)


def _schedules() -> Iterator[Charge]:
    """Yield what schedules start that finds nothing to do; in a cold function, but each minute."""
    minutes = MONTH_H * 60
    sweeps = minutes / SWEEP_EVERY_MINUTES
    tick = Count({"scheduler": 1}, "template")
    yield Charge(
        "schedule of flushes",
        tick
        + invoked("schedule_flush", HANDLER_MS + 2 * CALL_MS, _TICK_LOG_BYTES, "estimate")
        + Count({"dynamodb_reads": 4}, "eight queries of an empty index"),
        minutes / FLUSH_TICK_MINUTES,
    )
    yield Charge(
        "sweep of connections",
        tick + _cold("notify", CALL_MS) + Count({"dynamodb_reads": 0.5}, "a scan that finds none"),
        minutes / CONNECTIONS_EVERY_MINUTES,
    )
    listing = Count({"s3_writes": 1}, "a listing of claims")
    for what, function in (("lag of the lake", "materialise"), ("lag of deliveries", "deliver")):
        yield Charge(what, tick + _cold(function, S3_MS) + listing, sweeps)
    moves = Count({"transitions": SWEEP_TRANSITIONS}, "stepfunctions/sweep_lake.asl.json")
    yield Charge("sweep of the lake", tick + moves + listing, sweeps)
    daily = Count({"scheduler": 3, "transitions": DAILY_TRANSITIONS, "s3_writes": 2}, "template")
    yield Charge("maintenance and retention", daily + _cold("retain", 500), MONTH_DAYS)


def _cold(function: str, ms: float) -> Count:
    return invoked(function, COLD_MS + HANDLER_MS + ms, _TICK_LOG_BYTES, "estimate")


ENDPOINTS: Final = 2
"""Interface endpoints that the functions in subnets need: SQS and Secrets Manager. S3's and
DynamoDB's are free (docs/databases.md)."""


def _network(description: Description) -> Iterator[Charge]:
    hours = MONTH_H * description.zones
    if description.private == "endpoints":
        uses = Count({"endpoint_hours": ENDPOINTS * hours}, "docs/databases.md")
        yield Charge("interface endpoints", uses)
    elif description.private == "nat":
        yield Charge("NAT gateways", Count({"nat_hours": hours}, "one in each zone"))
