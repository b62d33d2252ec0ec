"""Checks schedules: enabled, and their targets ran and succeeded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import duration, excused, unchecked, well, wrong

if TYPE_CHECKING:
    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

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
    """Check every schedule of the stack."""
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
    now = datetime.fromtimestamp(deployed.now_s, UTC)
    name = arn.rpartition(":function:")[2].partition(":")[0]
    period_s = max(_PERIOD_S, -(-window_s // _POINTS_MAX // 60) * 60)
    answer = deployed.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/Lambda",
        MetricName="Invocations",
        Dimensions=[{"Name": "FunctionName", "Value": name}],
        StartTime=now - timedelta(seconds=window_s),
        EndTime=now,
        Period=period_s,
        Statistics=["Sum"],
    )
    return any(point["Sum"] for point in answer["Datapoints"])


def window(expression: str) -> int | None:
    """Return the seconds within which a schedule must have run; None if it is not a rate."""
    match = _RATE.fullmatch(expression)
    return None if match is None else 2 * int(match[1]) * _UNITS_S[match[2]] + _MISSED_S


def schedule_state(schedule: Schedule) -> Diagnosis:
    """Decide by a schedule and the executions of its target."""
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
