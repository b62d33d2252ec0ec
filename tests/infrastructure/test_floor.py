"""What `lakesync cost` counts as charged in any case is what the template declares."""

from __future__ import annotations

from typing import Any

import pytest

from lakesync.cli import cost
from lakesync.cli.cost import counts
from tests.infrastructure.stack import folder_of, functions, resources, template
from tests.support.some import some


def _unconditional(kind: str) -> int:
    return sum("Condition" not in each for each in resources(kind).values())


def test_cost_floor_counts_every_alarm_and_each_alarm_reads_one_metric() -> None:
    alarms = resources("AWS::CloudWatch::Alarm")

    assert _unconditional("AWS::CloudWatch::Alarm") == cost.ALARMS
    assert len(alarms) - cost.ALARMS == cost.DETAILED_ALARMS
    assert all("Metrics" not in alarm["Properties"] for alarm in alarms.values())


def test_cost_floor_counts_secrets_and_polled_queues() -> None:
    sources = [each["Properties"] for each in resources("AWS::Lambda::EventSourceMapping").values()]
    queues = [each for each in sources if "Queue" in str(each["EventSourceArn"])]

    assert _unconditional("AWS::SecretsManager::Secret") == cost.SECRETS
    assert len(queues) == cost.POLLED_QUEUES


def _schedules() -> list[str]:
    """Return when each schedule of a function or a state machine starts it."""
    every = some(template()["Resources"].values())
    events = (
        event for each in every for event in each.get("Properties", {}).get("Events", {}).values()
    )
    return [
        str(event["Properties"]["ScheduleExpression"])
        for event in events
        if event["Type"] == "ScheduleV2"
    ]


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        (f"rate({cost.FLUSH_TICK_MINUTES} minute)", 1),
        (f"rate({cost.CONNECTIONS_EVERY_MINUTES} minutes)", 1),
        ("rate(${SweepEveryMinutes} minutes)", 3),
        ("rate(${MaintainEveryHours} hours)", 1),
        ("rate(${CheckpointEveryHours} hours)", 1),
        ("rate(1 day)", 1),
    ],
)
def test_cost_floor_counts_every_schedule(expression: str, times: int) -> None:
    assert sum(expression in each for each in _schedules()) == times
    assert len(_schedules()) == 8


def test_cost_floor_assumes_the_default_schedule_intervals() -> None:
    defaults: dict[str, Any] = {
        name: each["Default"] for name, each in template()["Parameters"].items()
    }

    assert defaults["SweepEveryMinutes"] == cost.SWEEP_EVERY_MINUTES
    assert (defaults["MaintainEveryHours"], defaults["CheckpointEveryHours"]) == (24, 24)


def test_cost_estimate_uses_the_declared_memory_of_functions() -> None:
    memory = {folder_of(each): each["MemorySize"] / 1024 for each in functions().values()}

    assert {name: memory[name] for name in counts.MEMORY_GB} == counts.MEMORY_GB


def test_access_log_line_has_the_size_that_the_cost_estimate_assumes() -> None:
    values = {
        "$context.requestId": "JKJaXmPLvHcESHA=",
        "$context.identity.sourceIp": "203.0.113.195",
        "$context.routeKey": "POST /v1/sync/{gateway}/push",
        "$context.status": "200",
        "$context.responseLatency": "35",
        "$context.responseLength": "1200",
        "$context.integrationErrorMessage": "-",
        "${AWS::StackName}": "lakesync-production",
    }
    [api] = resources("AWS::Serverless::HttpApi").values()
    line = str(api["Properties"]["AccessLogSettings"]["Format"]["Fn::Sub"])
    for name, value in values.items():
        assert name in line
        line = line.replace(name, value)

    assert "$" not in line
    assert counts.ACCESS_LOG_BYTES - 10 < len(line) + 26 <= counts.ACCESS_LOG_BYTES
