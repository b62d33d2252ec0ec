"""Checks that data moves: schedules, queues, the lag of each stage, destinations and connectors."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.analysis.connection import paged
from lakesync.cli.commands.backlog import QUEUES, depth_of, latest_runs
from lakesync.cli.doctor import duration, excused, unchecked, well, wrong
from lakesync.core.clock import stamp_ms
from lakesync.core.deliveries import (
    CLAIMS,
    CLAIMS_FAILED,
    DELIVERIES,
    DELIVERIES_FAILED,
    claimed_last,
    delivery_place,
)
from lakesync.core.wording import plural
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.cli.doctor import Deployed, Diagnosis
    from lakesync.ports import StoredConnector

# --- schedules ------------------------------------------------------------------------------------


_KIND: Final = "AWS::Scheduler::Schedule"
_GROUP: Final = "Schedules"
"""The group of the stack's own schedules; those of connectors are in the other."""
_DEFAULT: Final = "default"
"""The group of schedules that name none."""
_RATE: Final = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_UNITS_S: Final = {"minute": 60, "hour": 3600, "day": 86_400}
_MISSED_S: Final = 600
"""The tolerance for starts that are late, or reported late, beyond an interval."""
_PERIOD_S: Final = 300
_POINTS_MAX: Final = 1_440
"""CloudWatch's maximum of points in one answer."""
_FAILED: Final = frozenset({"FAILED", "TIMED_OUT", "ABORTED"})
_SLEEPS: Final = "on the stage local the machine that would start it may have slept"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, and the executions of its target."""

    name: str
    state: str
    expression: str
    age_s: float
    """The time since it was created or changed."""
    ran: bool
    """The executions within the window in which it must have run."""
    last: str = ""
    """The result of the latest completed execution; empty if the target reports none."""

    @property
    def is_idle(self) -> bool:
        """Whether it is enabled and has not run, though nothing failed."""
        return self.state == "ENABLED" and not self.ran and self.last not in _FAILED


def check_schedules(deployed: Deployed) -> list[Diagnosis]:
    groups = {item.logical: item.physical for item in deployed.of_kind(f"{_KIND}Group")}
    group = groups.get(_GROUP, _DEFAULT)
    schedules = [
        _schedule(deployed, resource.logical, resource.physical, group)
        for resource in deployed.of_kind(_KIND)
    ]
    return [
        excused([schedule_state(each)], _SLEEPS)[0]
        if deployed.is_local and each.is_idle
        else schedule_state(each)
        for each in schedules
    ] or [wrong("the stack has no schedule: nothing is flushed by itself", "deploy again")]


def _schedule(deployed: Deployed, logical: str, name: str, group: str) -> Schedule:
    item = deployed.client("scheduler").get_schedule(Name=name, GroupName=group)
    changed = item.get("LastModificationDate") or item["CreationDate"]
    expression = item["ScheduleExpression"]
    window_s = window(expression) or 0
    arn = item["Target"]["Arn"]
    ran, last = (
        _executed(deployed, arn, window_s)
        if ":states:" in arn
        else (_invoked(deployed, arn, window_s), "")
    )
    age_s = deployed.now_s - changed.timestamp()
    return Schedule(logical, item["State"], expression, age_s, ran, last)


def _executed(deployed: Deployed, arn: str, window_s: int) -> tuple[bool, str]:
    client = deployed.client("stepfunctions")
    executions = client.list_executions(stateMachineArn=arn, maxResults=20)["executions"]
    since = deployed.now_s - window_s
    ran = any(item["startDate"].timestamp() >= since for item in executions)
    return ran, next((item["status"] for item in executions if item["status"] != "RUNNING"), "")


def _invoked(deployed: Deployed, arn: str, window_s: int) -> bool:
    name = arn.rpartition(":function:")[2].partition(":")[0]
    of = ("AWS/Lambda", "Invocations", "FunctionName", name)
    return any(_points(deployed, of, "Sum", window_s))


def _points(
    deployed: Deployed, of: tuple[str, str, str, str], statistic: str, window_s: int
) -> list[float]:
    """Return a metric's values, oldest first: by its namespace, its name, and its dimension."""
    now = datetime.fromtimestamp(deployed.now_s, UTC)
    namespace, metric, dimension, value = of
    answer = deployed.client("cloudwatch").get_metric_statistics(
        Namespace=namespace,
        MetricName=metric,
        Dimensions=[{"Name": dimension, "Value": value}],
        StartTime=now - timedelta(seconds=window_s),
        EndTime=now,
        Period=max(_PERIOD_S, -(-window_s // _POINTS_MAX // 60) * 60),
        Statistics=[statistic],
    )
    points = sorted(answer["Datapoints"], key=lambda point: point["Timestamp"])
    return [float(point[statistic]) for point in points]


def window(expression: str) -> int | None:
    """Return the seconds within which a schedule must have run; None if it is not a rate."""
    match = _RATE.fullmatch(expression)
    return None if match is None else 2 * int(match[1]) * _UNITS_S[match[2]] + _MISSED_S


def schedule_state(schedule: Schedule) -> Diagnosis:
    name, window_s = schedule.name, window(schedule.expression)
    if schedule.state != "ENABLED":
        return wrong(f"{name} is {schedule.state}", "enable it, or deploy again")
    if window_s is None:
        return unchecked(
            f"{name} runs by {schedule.expression}, whose interval is not known here",
            "look at the executions of its target",
        )
    if schedule.last in _FAILED:
        return wrong(
            f"{name}: the latest execution ended as {schedule.last}",
            "read the execution's error; docs/operations.md § Alarms says what to do",
        )
    if schedule.ran:
        return well(f"{name} ran within {duration(window_s)}")
    if schedule.age_s < window_s:
        return well(f"{name} is not due yet: it is {duration(schedule.age_s)} old")
    return wrong(
        f"{name} has not run for {duration(window_s)}, though it is {schedule.expression}",
        "see the schedule's role and its target's throttles: nothing is flushed or retained by "
        "itself meanwhile",
    )


# --- queues ---------------------------------------------------------------------------------------


_AGE_S_MAX: Final = {"flush": 3_600, "announce": 21_600, "deliver": 7_200}
"""How long a message of each queue may wait, as for the alarms."""
_WINDOW_S: Final = 900


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its dead letters."""

    name: str
    messages: int
    dead: int
    oldest_s: float = 0.0


def check_queues(deployed: Deployed) -> list[Diagnosis]:
    return [state for name in QUEUES for state in queue_state(_queue(deployed, name))]


def _queue(deployed: Deployed, name: str) -> Queue:
    url, dead = (deployed.aws.output(output) for output in QUEUES[name])
    client = deployed.client("sqs")
    return Queue(name, depth_of(client, url), depth_of(client, dead), _oldest_s(deployed, url))


def _oldest_s(deployed: Deployed, url: str) -> float:
    name = url.rpartition("/")[2]
    of = ("AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", name)
    return (_points(deployed, of, "Maximum", _WINDOW_S) or [0.0])[-1]


def queue_state(queue: Queue) -> list[Diagnosis]:
    faults = []
    if queue.dead:
        faults.append(
            wrong(
                f"{queue.name}: {plural(queue.dead, 'message')} given up",
                f"lakesync replay {queue.name} --look says what; mend the cause, then replay",
            )
        )
    if queue.oldest_s > _AGE_S_MAX[queue.name]:
        faults.append(
            wrong(
                f"{queue.name}: {plural(queue.messages, 'message')} waiting, the oldest for "
                f"{duration(queue.oldest_s)}",
                "read the log of the function that takes them: it fails, is throttled or stopped",
            )
        )
    return faults or [well(f"{queue.name}: {plural(queue.messages, 'message')} waiting, none dead")]


# --- lag ------------------------------------------------------------------------------------------


_GATEWAYS_MAX: Final = 500
"""Gateways that are checked, for a few read units each; it is reported if there are more."""
_NAMED_MAX: Final = 5
_CLAIMS_MAX: Final = 5_000
"""Claims that are read: five listings."""
_FLUSH_EVERY_MIN: Final = 15
_SWEEP_EVERY_MIN: Final = 30
_AT_WORK_S: Final = 900
"""The time that a flush may take beyond its interval, for queueing and retries."""
_RUN_S: Final = 7_200
"""A Glue run's time-out."""
_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "TIMEOUT", "ERROR", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """The batches that wait for the Glue job, or that it set aside."""

    claims: int
    oldest_s: float
    set_aside: int
    more: bool = False


def check_buffer_lag(deployed: Deployed) -> list[Diagnosis]:
    """Check how long the oldest unflushed edit of each gateway has waited."""
    from lakesync.gateway.admin import metrics
    from lakesync.maintenance.flush import due_slices

    buffer = deployed.aws.buffer(deployed.aws.output("BufferTable"))
    # Only gateways with unflushed commits, by the index that the schedule reads too.
    due = (gateway for some in due_slices(buffer) for gateway in some.gateways)
    now_ms = int(deployed.now_s * 1000)
    ages_s = {
        gateway: int(str(metrics(buffer, gateway, None, now_ms)["unflushedAgeMs"])) / 1000
        for gateway in islice(due, _GATEWAYS_MAX)
    }
    allowed_s = deployed.number("FlushEveryMinutes", _FLUSH_EVERY_MIN) * 60 + _AT_WORK_S
    return buffer_lag(ages_s, allowed_s, more=next(due, None) is not None)


def buffer_lag(ages_s: Mapping[str, float], allowed_s: float, *, more: bool) -> list[Diagnosis]:
    late = sorted((gateway for gateway, age in ages_s.items() if age > allowed_s))
    unseen = [
        unchecked(
            f"more than {plural(len(ages_s), 'gateway')} with edits to flush: not all looked at",
            "the alarm on the age of the oldest unflushed edit watches all of them",
        )
    ]
    if late:
        worst_s = max(ages_s[gateway] for gateway in late)
        state = wrong(
            f"{plural(len(late), 'gateway')} not flushed in time, the oldest edit for "
            f"{duration(worst_s)}: {', '.join(late[:_NAMED_MAX])}",
            "lakesync flush --gateway NAME, and read the log of FlushFunction; past "
            "what FlushBounds allow pushes are refused",
        )
    else:
        oldest_s = max(ages_s.values(), default=0.0)
        state = well(
            f"{plural(len(ages_s), 'gateway')} with edits to flush, the oldest for "
            f"{duration(oldest_s)}"
        )
    return [state, *(unseen if more else [])]


def check_lake_lag(deployed: Deployed) -> list[Diagnosis]:
    """Check how long announced batches have waited for the Glue job, and how its runs ended."""
    waiting = _waiting(deployed)
    allowed_s = deployed.number("SweepEveryMinutes", _SWEEP_EVERY_MIN) * 60 + _RUN_S
    return lake_lag(waiting, allowed_s, [run["JobRunState"] for run in latest_runs(deployed.aws)])


def _waiting(deployed: Deployed) -> Waiting:
    claims = [one["LastModified"].timestamp() for one in _objects(deployed, CLAIMS)]
    failed = len(_objects(deployed, CLAIMS_FAILED))
    oldest_s = max(deployed.now_s - min(claims), 0.0) if claims else 0.0
    return Waiting(len(claims), oldest_s, failed, len(claims) == _CLAIMS_MAX)


def lake_lag(waiting: Waiting, allowed_s: float, runs: Sequence[str]) -> list[Diagnosis]:
    return [_waits(waiting, allowed_s), *_set_aside(waiting.set_aside), _runs(runs)]


def _waits(waiting: Waiting, allowed_s: float) -> Diagnosis:
    count = f"{plural(waiting.claims, 'batch')}{' or more' if waiting.more else ''}"
    if waiting.oldest_s > allowed_s:
        return wrong(
            f"{count} waiting for the lake, one for {duration(waiting.oldest_s)}",
            "read the job's log (/aws-glue/STACK/error), then start SweepStateMachineArn; nothing "
            "is lost before the first of LakeKeepDays",
        )
    return well(f"{count} waiting for the lake, the oldest for {duration(waiting.oldest_s)}")


def _set_aside(count: int) -> Iterator[Diagnosis]:
    if not count:
        return
    yield wrong(
        f"{plural(count, 'batch')} could not be applied to the lake, and were set aside",
        "lakesync replay claims --look says why, for each gateway; mend it, then replay",
    )


def _runs(states: Iterable[str]) -> Diagnosis:
    over = next((state for state in states if state in _OVER), None)
    if over is None:
        return well("the Glue job has not ended a run yet")
    if over != "SUCCEEDED":
        return wrong(
            f"the latest run of the Glue job ended as {over}",
            "read its log, /aws-glue/STACK/error; the sweep takes its batches up again",
        )
    return well("the latest run of the Glue job succeeded")


# --- destinations, connectors, flows --------------------------------------------------------------


_DESTINATION_ALARM_S: Final = 7_200
_INTERVALS: Final = 3
"""The number of intervals that may pass without a completed poll: a poll may take long."""
_LATE_S: Final = 900


@dataclass(frozen=True, slots=True)
class Outlet:
    """A destination for which claims wait."""

    name: str
    """With its gateway: ``acme/warehouse``."""
    claims: int
    oldest_s: float
    paused: bool
    set_aside: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A connector, or a flow that is polled."""

    name: str
    """With its gateway."""
    paused: bool
    late_s: float = 0.0
    """How long a completed poll is overdue; 0 if it is not."""
    fault: str = ""
    dead_letters: int = 0


def check_destinations(deployed: Deployed) -> list[Diagnosis]:
    """Check how long claims have waited for each destination, and which were set aside."""
    keys = [one["Key"] for one in _objects(deployed, DELIVERIES)]
    failed = [one["Key"] for one in _objects(deployed, DELIVERIES_FAILED)]
    allowed_s = deployed.part("AlarmBounds", 2, _DESTINATION_ALARM_S)
    more = _CLAIMS_MAX in {len(keys), len(failed)}
    return destinations_state(list(_outlets(deployed, keys, failed)), allowed_s, more=more)


def _objects(deployed: Deployed, prefix: str) -> list[dict[str, Any]]:
    place = {"Bucket": deployed.aws.output("LakeBucket"), "Prefix": prefix}
    listed = paged(deployed.client("s3"), "list_objects_v2", "Contents", **place)
    return list(islice(listed, _CLAIMS_MAX))


def _outlets(deployed: Deployed, keys: Sequence[str], failed: Sequence[str]) -> Iterator[Outlet]:
    waiting, set_aside = _by_destination(keys), _by_destination(failed)
    buffer = deployed.aws.buffer(deployed.aws.output("BufferTable"))
    for pair in sorted(waiting.keys() | set_aside.keys()):
        gateway, name = pair
        lasts = waiting.get(pair, [])
        declared = buffer.destinations(gateway).by_name.get(name)
        paused = declared is not None and declared.paused
        dated = [last for last in lasts if last]
        oldest_s = deployed.now_s - stamp_ms(min(dated)) / 1000 if dated else 0.0
        count = len(set_aside.get(pair, []))
        yield Outlet(f"{gateway}/{name}", len(lasts), max(oldest_s, 0.0), paused, count)


def _by_destination(keys: Iterable[str]) -> dict[tuple[str, str], list[int]]:
    """Return the last commit of each claim, by gateway and destination; 0 if it names none."""
    lasts: dict[tuple[str, str], list[int]] = {}
    for key in keys:
        with suppress(ValidationFailed):  # not one of ours
            place = delivery_place(DELIVERIES + key.partition("/")[2])
            lasts.setdefault(place[:2], []).append(claimed_last(key))
    return lasts


def destinations_state(
    outlets: Sequence[Outlet], allowed_s: float, *, more: bool = False
) -> list[Diagnosis]:
    diagnoses = [each for outlet in outlets for each in _outlet_state(outlet, allowed_s)]
    if more:
        what = f"more than {_CLAIMS_MAX:,} claims of destinations: not all looked at"
        diagnoses.append(unchecked(what, "the alarm DeliveriesLate watches all of them"))
    waited = plural(len(outlets), "one")
    return diagnoses or [well(f"nothing late for destinations: {waited} waited")]


def _outlet_state(outlet: Outlet, allowed_s: float) -> Iterator[Diagnosis]:
    waits = f"{outlet.name}: {plural(outlet.claims, 'claim')} waiting"
    if outlet.set_aside:
        yield wrong(
            f"{outlet.name}: {plural(outlet.set_aside, 'claim')} could not succeed, and were set "
            "aside",
            "lakesync destinations list says why; mend it, then lakesync destinations replay",
        )
    if outlet.paused:
        yield well(f"{waits}, as it is paused")
    elif outlet.oldest_s > allowed_s:
        yield wrong(
            f"{waits}, one for {duration(outlet.oldest_s)}",
            "lakesync destinations list says why; mend it, or pause it",
        )


def check_connectors(deployed: Deployed) -> list[Diagnosis]:
    """Check that each connector and polled flow is polled, without a fault or a refused row."""
    from lakesync.buffer.admin_stores import ItemConnectors

    table = deployed.aws.output("BufferTable")
    gateways = sorted(deployed.aws.buffer(table).gateways())
    store = ItemConnectors(deployed.aws.items("BufferTable"))
    sources = [
        source_of(gateway, stored, deployed.now_s)
        for gateway in gateways[:_GATEWAYS_MAX]
        for stored in store.connectors(gateway)
    ]
    return connectors_state(sources, more=len(gateways) > _GATEWAYS_MAX)


def source_of(gateway: str, stored: StoredConnector, now_s: float) -> Source:
    from lakesync.connectors.registry import definition_from
    from lakesync.connectors.state import state_from

    definition, state = definition_from(stored.definition), state_from(stored.state)
    due_s = _INTERVALS * definition.every_minutes * 60 + _LATE_S
    late_s = now_s - max(state.polled_ms, state.wait_until_ms) / 1000 - due_s
    is_late = late_s > 0 and bool(state.polled_ms or state.wait_until_ms)
    fault = f"{state.fault.code}: {state.fault.message}" if state.fault else ""
    return Source(
        f"{gateway}/{stored.name}",
        definition.paused,
        late_s + due_s if is_late else 0.0,
        fault,
        state.dead_letters,
    )


def connectors_state(sources: Sequence[Source], *, more: bool = False) -> list[Diagnosis]:
    diagnoses = [each for source in sources for each in _source_state(source)]
    if more:
        what = f"more than {_GATEWAYS_MAX} gateways: not all looked at"
        diagnoses.append(unchecked(what, "lakesync connectors list --gateway NAME looks at one"))
    return diagnoses or [well(f"{plural(len(sources), 'connector')} polled without a fault")]


def _source_state(source: Source) -> Iterator[Diagnosis]:
    if source.dead_letters:
        yield wrong(
            f"{source.name}: {plural(source.dead_letters, 'row')} refused",
            "lakesync connectors show NAME says why, of the first; mend that, and they are taken",
        )
    if source.paused:
        yield well(f"{source.name} is paused")
    elif source.fault:
        yield wrong(
            f"{source.name} met a fault: {source.fault[:200]}",
            "lakesync connectors check NAME asks its source; mend that, or pause it",
        )
    elif source.late_s:
        yield wrong(
            f"{source.name} was not polled to its end for {duration(source.late_s)}",
            "read the log of IngestFunction, and the executions of PollConnector",
        )
