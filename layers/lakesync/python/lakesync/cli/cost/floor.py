"""What AWS charges for a stack in any case, whether anybody uses it or not.

The numbers of resources are those of the template; ``tests/infrastructure/test_floor.py`` holds the
two together. Pure: no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.cli.cost.counts import CALL_MS, COLD_MS, HANDLER_MS, S3_MS, Count, invoked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.cost.description import Description

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
    """Yield what a stack of this description is charged without any use."""
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
