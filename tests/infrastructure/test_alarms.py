"""Whatever fails, somebody is told: alarms, rules, and a topic that lets both publish."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lakesync.cli.cost import ALARMS, DETAILED_ALARMS
from lakesync.runtime import observe
from lakesync.runtime.deliver import LAG
from lakesync.runtime.materialise import LAKE_LAG, SMALL_FAULTS
from lakesync.runtime.polls import POLLS_BEHIND, POLLS_FAULTY, SOURCE_KEPT
from lakesync.runtime.tasks import UNFLUSHED_AGE
from lakesync_spark.iceberg.maintenance_report import SERVICE as MAINTENANCE
from lakesync_spark.iceberg.maintenance_report import MaintenanceReport
from tests.infrastructure.aws_limits import dashboard_widgets
from tests.infrastructure.stack import (
    accepts,
    alarms_on,
    as_list,
    functions,
    part,
    resources,
    template,
    watched,
)
from tests.support.repository import ROOT
from tests.support.some import some

PUBLISHERS = ("cloudwatch.amazonaws.com", "events.amazonaws.com")


def _statements(publisher: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        statement
        for statement in document["Statement"]
        if publisher in as_list(statement["Principal"].get("Service", []))
    ]


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_alarm_topic_and_its_key_allow_alarms_and_rules_to_publish(publisher: str) -> None:
    policy = resources("AWS::SNS::TopicPolicy")["AlarmTopicPolicy"]["Properties"]
    key = resources("AWS::KMS::Key")["AlarmKey"]["Properties"]
    (publish,) = _statements(publisher, policy["PolicyDocument"])
    (encrypt,) = _statements(publisher, key["KeyPolicy"])

    assert publish["Action"] == "sns:Publish"
    assert set(encrypt["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey*"}


def test_topic_policy_allows_eventbridge_without_conditions() -> None:
    policy = resources("AWS::SNS::TopicPolicy")["AlarmTopicPolicy"]["Properties"]
    (publish,) = _statements("events.amazonaws.com", policy["PolicyDocument"])

    assert "Condition" not in publish


def _rule(name: str) -> dict[str, Any]:
    properties: dict[str, Any] = resources("AWS::Events::Rule")[name]["Properties"]
    assert properties["Targets"][0]["Arn"] == {"Ref": "AlarmTopic"}
    detail: dict[str, Any] = properties["EventPattern"]["detail"]
    return detail


def test_event_rule_covers_failed_runs_of_every_glue_job() -> None:
    detail = _rule("GlueFailure")

    assert {"FAILED", "TIMEOUT", "STOPPED"} <= set(detail["state"])
    assert {job["Ref"] for job in detail["jobName"]} == set(resources("AWS::Glue::Job"))


def test_failed_executions_of_every_state_machine_are_covered_by_a_rule_or_alarm() -> None:
    detail = _rule("ExecutionFailure")
    machines = set(resources("AWS::Serverless::StateMachine"))

    assert {"FAILED", "TIMED_OUT", "ABORTED"} == set(detail["status"])
    # Executions of an express machine are no events of EventBridge: its alarms count them.
    express = {"PollConnector"}
    assert (
        resources("AWS::Serverless::StateMachine")["PollConnector"]["Properties"]["Type"]
        == "EXPRESS"
    )
    assert {machine["Ref"] for machine in detail["stateMachineArn"]} == machines - express
    for metric in ("ExecutionsFailed", "ExecutionsTimedOut"):
        assert {one["Ref"] for one in alarms_on("AWS/States", metric)} == express


# --- requests, the buffer, schedules --------------------------------------------------------------

STACK = {"Ref": "AWS::StackName"}
IN_ACCESS_LOG = {
    "PushesFailed": '{ $.route = "*/push" && $.status = "5*" }',
    "PullsFailed": '{ $.route = "*/pull" && $.status = "5*" }',
    "RequestsFailed": '{ $.route != "*/push" && $.route != "*/pull" && $.status = "5*" }',
}
TABLE = {"Fn::If": ["OwnBuffer", {"Ref": "BufferTable"}, {"Ref": "BufferTableName"}]}


@pytest.mark.parametrize(
    ("namespace", "metric", "of"),
    [
        ("AWS/ApiGateway", "ExecutionError", {"Ref": "SocketApi"}),
        ("AWS/ApiGateway", "Latency", {"Ref": "HttpApi"}),
        ("AWS/DynamoDB", "ReadThrottleEvents", TABLE),
        ("AWS/DynamoDB", "WriteThrottleEvents", TABLE),
        ("AWS/DynamoDB", "TransactionConflict", TABLE),
        ("AWS/Lambda", "IteratorAge", {"Ref": "NotifyFunction"}),
        ("AWS/Lambda", "Invocations", {"Ref": "ScheduleFlushFunction"}),
        ("AWS/Scheduler", "TargetErrorCount", {"Ref": "Schedules"}),
        ("AWS/Scheduler", "TargetErrorCount", {"Ref": "ConnectorSchedules"}),
        ("AWS/Scheduler", "InvocationDroppedCount", {"Ref": "Schedules"}),
        *(("LakeSync", signal, STACK) for signal in sorted(observe.SIGNALS)),
        *(("LakeSync", counted, STACK) for counted in IN_ACCESS_LOG),
        ("LakeSync", SMALL_FAULTS, "materialise"),
        ("LakeSync", LAKE_LAG, "materialise"),
        ("LakeSync", POLLS_BEHIND, "ingest"),
        ("LakeSync", POLLS_FAULTY, "ingest"),
        ("LakeSync", SOURCE_KEPT, "ingest"),
        ("LakeSync", LAG, "deliver"),
        ("LakeSync", "LakeTablesLeft", MAINTENANCE),
        ("LakeSync", "LakeSmallFilesMost", MAINTENANCE),
        ("LakeSync", UNFLUSHED_AGE, "schedule_flush"),
    ],
)
def test_metric_has_an_alarm(namespace: str, metric: str, of: object) -> None:
    assert of in alarms_on(namespace, metric)


def test_lake_lag_is_measured_on_a_schedule_and_not_by_queue_messages() -> None:
    events = functions()["MaterialiseFunction"]["Events"]
    alarm = resources("AWS::CloudWatch::Alarm")["LakeLate"]["Properties"]

    assert events["Lag"]["Type"] == "ScheduleV2"
    assert "Records" not in json.loads(events["Lag"]["Properties"]["Input"])
    assert alarm["Threshold"] == part(1, "AlarmBounds")


def test_alarm_is_raised_when_the_flush_schedule_stops() -> None:
    alarm = resources("AWS::CloudWatch::Alarm")["FlushNotScheduled"]["Properties"]
    every = template()["Parameters"]["FlushEveryMinutes"]

    assert alarm["Dimensions"][0]["Value"] == {"Ref": "ScheduleFlushFunction"}
    assert alarm["TreatMissingData"] == "breaching"
    assert every["MaxValue"] * 60 < alarm["Period"]


def test_alarm_is_raised_when_daily_write_units_exceed_the_bound() -> None:
    alarm = resources("AWS::CloudWatch::Alarm")["CostsMuch"]["Properties"]

    assert (alarm["MetricName"], alarm["Statistic"]) == ("ConsumedWriteCapacityUnits", "Sum")
    assert alarm["Dimensions"] == [{"Name": "TableName", "Value": TABLE}]
    assert (alarm["Period"], alarm["Threshold"]) == (86_400, part(4, "AlarmBounds"))


@pytest.mark.parametrize(
    ("condition", "word"),
    [("WatchesDetails", "detailed"), ("Traces", "traces"), ("WatchesGateways", "gateways"),
     ("WatchesSample", "sample"), ("EncryptsAlarms", "own-key")],
)  # fmt: skip
def test_watching_parameter_is_a_list_of_words_and_each_enables_a_condition(
    condition: str, word: str
) -> None:
    given = {"Ref": "Watching"}
    without = {"Fn::Join": ["", {"Fn::Split": [word, given]}]}

    assert template()["Conditions"][condition] == {"Fn::Not": [{"Fn::Equals": [without, given]}]}
    assert accepts("Watching", word)
    assert accepts("Watching", f"traces,{word}")
    assert not accepts("Watching", f"basic,{word}")


def test_alarms_read_own_metrics_with_the_dimensions_that_functions_write() -> None:
    services = {
        each["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] for each in functions().values()
    }
    services |= {MAINTENANCE}
    ours = [(name, metric) for name, metric in watched() if metric["Namespace"] == "LakeSync"]
    for name, metric in some(ours):
        dimensions = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
        of_stack = metric["MetricName"] in {*observe.SIGNALS, *IN_ACCESS_LOG}
        assert dimensions.keys() == ({"stack"} if of_stack else {"service", "stack"}), name
        assert dimensions["stack"] == STACK
        assert of_stack or dimensions["service"] in services
    shared = template()["Globals"]["Function"]["Environment"]["Variables"]
    assert shared["STACK_NAME"] == {"Ref": "AWS::StackName"}


def test_lake_metric_filters_match_the_report_of_a_maintenance_run() -> None:
    sums = MaintenanceReport("arn:aws:cloudformation:us-east-1:1:stack/one/1a2b").sums()
    assert (sums["service"], sums["stack"]) == (MAINTENANCE, "one")

    filters = resources("AWS::Logs::MetricFilter")
    of_lake = {name: each for name, each in filters.items() if name.startswith("Lake")}
    for name, each in some(of_lake.items()):
        [made] = each["Properties"]["MetricTransformations"]
        fields = [made["MetricValue"], *(one["Value"] for one in made["Dimensions"])]
        assert all(field.removeprefix("$.") in sums for field in fields), name
        assert made["MetricName"] == name
        assert f'"{MAINTENANCE}"' in each["Properties"]["FilterPattern"]


@pytest.mark.parametrize(("name", "pattern"), IN_ACCESS_LOG.items())
def test_metric_filters_count_failed_requests_in_the_access_log(name: str, pattern: str) -> None:
    each = resources("AWS::Logs::MetricFilter")[name]["Properties"]
    api = resources("AWS::Serverless::HttpApi")["HttpApi"]["Properties"]
    line = json.loads(api["AccessLogSettings"]["Format"]["Fn::Sub"])
    [counted] = each["MetricTransformations"]

    assert {"route", "status", "stack"} <= line.keys()
    assert each["FilterPattern"] == pattern
    assert counted["Dimensions"] == [{"Key": "stack", "Value": "$.stack"}]
    assert counted["MetricName"] == name


def test_operations_page_explains_every_alarm_and_rule() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")

    for name in (*resources("AWS::CloudWatch::Alarm"), *resources("AWS::Events::Rule")):
        assert f"`{name}`" in page, name


def test_every_alarm_has_a_severity_and_notifies_when_it_clears() -> None:
    for name, alarm in some(watched()):
        assert alarm["AlarmDescription"].partition(" - ")[0] in {"high", "low"}, name
        assert alarm["OKActions"] == alarm["AlarmActions"] == [{"Ref": "AlarmTopic"}], name


def test_basic_alarms_have_the_expected_number_and_read_one_metric_each() -> None:
    """Each costs ten cents a month, and one on an expression as much for each metric in it."""
    every = resources("AWS::CloudWatch::Alarm").values()
    basic = [each["Properties"] for each in every if each.get("Condition") != "WatchesDetails"]

    assert (len(basic), len(every) - len(basic)) == (ALARMS, DETAILED_ALARMS), "what they cost"
    assert not any("Metrics" in alarm for alarm in basic)
    assert template()["Parameters"]["Watching"]["Default"] == "basic"
    assert resources("AWS::CloudWatch::Dashboard")["Dashboard"]["Condition"] == "WatchesDetails"


# --- the dashboard --------------------------------------------------------------------------------


def _widgets() -> list[dict[str, Any]]:
    body, names = resources("AWS::CloudWatch::Dashboard")["Dashboard"]["Properties"][
        "DashboardBody"
    ]["Fn::Sub"]
    for name in re.findall(r"\$\{([\w:.]+)\}", body):
        known = name.partition(".")[0]
        assert known in template()["Resources"] or known in names or name.startswith("AWS::"), name
    return dashboard_widgets(resources("AWS::CloudWatch::Dashboard")["Dashboard"]["Properties"])


def test_dashboard_widgets_fit_the_grid_and_have_properties() -> None:
    for widget in some(_widgets()):
        assert widget["x"] + widget["width"] <= 24
        assert widget["properties"]


def test_dashboard_shows_every_alarm_and_every_function() -> None:
    text = json.dumps(_widgets())

    for name in resources("AWS::CloudWatch::Alarm"):
        assert f"${{{name}.Arn}}" in text, name
    for name in functions():
        # Its time; calls, errors and throttles are searched by the stack's name.
        assert text.count(f"${{{name}}}") == 1, name


def test_dashboard_has_sections_on_health_cost_and_usage() -> None:
    titles = [w["properties"]["markdown"] for w in _widgets() if w["type"] == "text"]

    assert [title.splitlines()[0] for title in titles] == [
        "# Is it healthy?",
        "# What does it cost?",
        "# Who uses it?",
    ]


def test_dashboard_prices_functions_by_their_declared_memory() -> None:
    [costs] = [w for w in _widgets() if w["properties"].get("title") == "Dollars a day"]
    metrics = costs["properties"]["metrics"]
    asked = {m[0]["id"]: m[0]["expression"] for m in metrics if len(m) == 1}
    # Of the only function with its memory no search is needed.
    asked |= {m[-1]["id"]: f'MetricName="{m[1]}" {m[3]}' for m in metrics if m[0] == "AWS/Lambda"}
    by_memory: dict[int, set[str]] = {}
    for name, each in functions().items():
        by_memory.setdefault(each["MemorySize"], set()).add(name)
    times = " + ".join(f"d{memory} * {memory}" for memory in sorted(by_memory))

    assert asked["cl"] == f"({times}) / 1024000 * 0.0000133334 + n * 0.0000002"
    assert '"${AWS::StackName}-" MetricName="Invocations"' in asked["n"]
    for memory, names in some(by_memory.items()):
        search = asked[f"d{memory}"]
        assert 'MetricName="Duration"' in search
        assert set(re.findall(r"\$\{(\w+)\}", search)) == names
        # CloudWatch's limit, with names as long as Lambda's.
        assert len(re.sub(r"\$\{\w+\}", "n" * 64, search)) <= 1024
