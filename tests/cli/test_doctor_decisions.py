"""What the doctor decides by facts alone: each fault is named with what to do, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.cli.doctor import (
    Diagnosis,
    Verdict,
    deployment,
    duration,
    exit_code,
    progress,
    protection,
    unchecked,
    well,
    wrong,
)
from lakesync.cli.doctor.progress import (
    Outlet,
    Source,
    check_connectors,
    check_destinations,
    connectors_state,
    destinations_state,
    source_of,
)
from lakesync.cli.doctor.protection import PROTECTION, RECOVERY, STREAM
from lakesync.connectors.registry import Definition
from lakesync.connectors.state import Fault, PollState
from lakesync.core.clock import stamp
from lakesync.declare.destinations import destination_reader
from lakesync.gateway.destination_admin import DestinationAdmin
from tests.infrastructure.stack import template
from tests.support.builders import insert, push
from tests.support.gateways import pusher
from tests.support.lake import Messages, Objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.cli.doctor import Diagnosis


TODAY = date(2026, 11, 23)


def faults(diagnoses: Iterable[Diagnosis]) -> list[str]:
    """Return what is wrong; everything that is wrong says what to do."""
    every = [one for one in diagnoses if one.verdict is Verdict.WRONG]
    assert all(one.do for one in every)
    return [one.what for one in every]


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diagnoses", "code"),
    [
        ([well("a")], 0),
        ([well("a"), unchecked("b", "c")], 2),
        ([unchecked("b", "c"), wrong("d", "e"), well("a")], 1),
        ([], 0),
    ],
)
def test_doctors_exit_code_ranks_faults_above_unchecked_items(
    diagnoses: list[Diagnosis], code: int
) -> None:
    assert exit_code(diagnoses) == code


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (1500, "25 min"), (21_600, "6 h"), (5e5, "6 days")],
)
def test_durations_are_shown_in_readable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- the stack, and the gateway from outside ------------------------------------------------------


def test_the_stack_outputs_that_doctor_reads_are_in_the_template() -> None:
    assert set(deployment.OUTPUTS) <= set(template()["Outputs"])


def test_a_completely_deployed_stack_has_no_faults() -> None:
    assert faults(deployment.stack_state("UPDATE_COMPLETE", deployment.OUTPUTS)) == []


@pytest.mark.parametrize(
    ("status", "finding"),
    [
        ("UPDATE_ROLLBACK_COMPLETE", "the last deployment failed"),
        ("CREATE_FAILED", "the last deployment failed"),
        ("UPDATE_IN_PROGRESS", "a deployment is under way"),
    ],
)
def test_a_failed_or_running_deployment_is_reported(status: str, finding: str) -> None:
    assert faults(deployment.stack_state(status, deployment.OUTPUTS)) == [f"{finding}: {status}"]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        ("ROLLBACK_COMPLETE", "lakesync stack delete"),
        ("ROLLBACK_FAILED", "lakesync stack delete"),
        ("UPDATE_ROLLBACK_COMPLETE", "deploy again"),
        ("UPDATE_ROLLBACK_FAILED", "continue-update-rollback"),
    ],
)
def test_a_rolled_back_deployment_is_reported_with_advice(status: str, advice: str) -> None:
    [first, *_] = deployment.stack_state(status, deployment.OUTPUTS)
    assert advice in first.do


def test_a_missing_stack_output_is_named() -> None:
    some = set(deployment.OUTPUTS) - {"RetainFunction"}
    assert faults(deployment.stack_state("CREATE_COMPLETE", some)) == [
        "the stack has no output RetainFunction"
    ]


@pytest.mark.parametrize(
    ("health", "closed", "count"),
    [(200, 401, 0), (200, 403, 0), (429, 401, 1), (200, 200, 1), (502, 500, 2)],
)
def test_the_gateway_must_answer_health_and_refuse_requests_without_a_token(
    health: int, closed: int, count: int
) -> None:
    assert len(faults(deployment.reached("https://x", health, closed))) == count


@given(off_s=st.floats(-3600, 3600), fraction=st.floats(0, 0.999), took_s=st.floats(0, 3))
def test_clock_skew_is_a_fault_only_beyond_date_rounding_and_latency(
    off_s: float, fraction: float, took_s: float
) -> None:
    """``off_s``: how far our clock is ahead. The date is cut to whole seconds, on the way."""
    written_s = 1_800_000_000 + fraction
    date_text = format_datetime(datetime.fromtimestamp(int(written_s), UTC), usegmt=True)
    asked_s = written_s + off_s - took_s / 2
    diagnosis = deployment.clock(deployment.Heard(date_text, asked_s, asked_s + took_s))

    if abs(off_s) <= 5:
        assert diagnosis.verdict is Verdict.WELL
    if abs(off_s) > 5 + 1 + took_s:
        assert diagnosis.verdict is Verdict.WRONG
        assert ("ahead of" if off_s > 0 else "behind") in diagnosis.what


def test_an_answer_without_a_date_leaves_the_clock_unchecked() -> None:
    assert deployment.clock(deployment.Heard("", 0, 0)).verdict is Verdict.UNCHECKED


# --- functions ------------------------------------------------------------------------------------

LAYER = "arn:aws:lambda:eu-west-1:1:layer:LakesyncLayer:7"


def function(name: str = "PushFunction", **more: Any) -> deployment.Function:
    config = {
        "FunctionName": f"prod-{name}",
        "Runtime": "python3.13",
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "CodeSha256": "new",
        "Layers": [{"Arn": LAYER}],
    } | more.pop("config", {})
    return deployment.Function(name, config, **more)


def state(*every: deployment.Function, layers: tuple[str, ...] = (LAYER,)) -> list[str]:
    return faults(deployment.functions_state(every, layers, TODAY))


def alias(**more: Any) -> dict[str, Any]:
    config = function().config | more.pop("config", {})
    return {"Name": "live", "FunctionVersion": "4", "config": config} | more


def test_functions_with_the_layer_of_one_release_have_no_faults() -> None:
    assert state(function(), function("PullFunction", aliases=(alias(),))) == []


@pytest.mark.parametrize(
    ("one", "finding"),
    [
        (function(reserved=0), "PushFunction is stopped: its reserved concurrency is 0"),
        (
            function(config={"State": "Failed", "StateReason": "no role"}),
            "PushFunction is Failed, its update Successful: no role",
        ),
        (
            function(config={"LastUpdateStatus": "Failed"}),
            "PushFunction is Active, its update Failed: no reason given",
        ),
        (
            function(aliases=(alias(RoutingConfig={"AdditionalVersionWeights": {"5": 0.1}}),)),
            "PushFunction:live shares its traffic between two versions",
        ),
        (
            function(aliases=(alias(config={"CodeSha256": "old"}),)),
            "PushFunction:live runs version 4, not what was deployed last: other code",
        ),
        (
            function(aliases=(alias(config={"Layers": [{"Arn": LAYER.replace(":7", ":6")}]}),)),
            "PushFunction:live runs version 4, not what was deployed last: other layers",
        ),
        (
            function(aliases=(alias(config={"Environment": {}, "Runtime": "python3.12"}),)),
            "PushFunction:live runs version 4, not what was deployed last: other settings, runtime",
        ),
        (function(config={"Runtime": "python3.9"}), "PushFunction runs on python3.9"),
    ],
)
def test_a_function_or_alias_in_a_faulty_state_is_reported(
    one: deployment.Function, finding: str
) -> None:
    assert state(one) == [finding]


def test_a_function_with_the_layer_of_another_release_is_reported() -> None:
    old = LAYER.replace(":7", ":6")
    assert state(function(), function("PullFunction", config={"Layers": [{"Arn": old}]})) == [
        f"PullFunction: the layer {old} is not of this deployment"
    ]


def test_a_runtime_is_reported_90_days_before_its_end_of_support() -> None:
    ends = deployment.RUNTIME_ENDS["python3.13"]
    for days, count in ((91, 0), (90, 1), (-1, 1)):
        every = deployment.functions_state([function()], [LAYER], ends - timedelta(days=days))
        assert len(faults(every)) == count


def test_the_end_of_support_of_every_template_runtime_is_known() -> None:
    runtimes = template()["Parameters"]["PythonRuntime"]["AllowedValues"]
    assert set(deployment.RUNTIME_ENDS) == set(runtimes)


# --- quotas, alarms, schedules --------------------------------------------------------------------


def test_a_quota_below_its_need_is_a_fault_and_an_unknown_one_unchecked() -> None:
    needs = deployment.needs(500, 0)
    assert needs["lambda"] < 1_000
    assert needs["dynamodb"] < 40_000
    diagnoses = deployment.quotas_state(
        [
            deployment.Quota("a", 10, 157),
            deployment.Quota("b", None, 5),
            deployment.Quota("c", 157, 157),
        ]
    )
    assert [one.verdict for one in diagnoses] == [Verdict.WRONG, Verdict.UNCHECKED, Verdict.WELL]


def alarm(name: str, **more: Any) -> dict[str, Any]:
    usual = {"AlarmName": name, "StateValue": "OK", "AlarmActions": ["topic"]}
    return usual | {"ActionsEnabled": True} | more


def test_existing_silent_alarms_are_no_faults() -> None:
    assert faults(deployment.alarms_state(["a", "b"], [alarm("a"), alarm("b")])) == []


def test_a_missing_ringing_or_unconnected_alarm_is_reported() -> None:
    every = [
        alarm("rings", StateValue="ALARM", AlarmDescription="A flush was given up"),
        alarm("mute", ActionsEnabled=False),
        alarm("alone", AlarmActions=[]),
    ]
    assert faults(deployment.alarms_state(["gone", "rings", "mute", "alone"], every)) == [
        "the alarm gone is gone",
        "the alarm alone notifies nobody",
        "the alarm mute notifies nobody",
        "rings rings: A flush was given up",
    ]


@pytest.mark.parametrize(
    ("topic", "finding"),
    [
        (deployment.Topic("t", 1, 0, "a key of ours"), None),
        (deployment.Topic("t", 0, 1), "nobody has confirmed a subscription to t"),
        (deployment.Topic("t", 0, 0), "nobody has subscribed to t: alarms ring unheard"),
        (
            deployment.Topic("t", 1, 0, "alias/aws/sns"),
            "CloudWatch may not publish to t: it is encrypted with alias/aws/sns",
        ),
    ],
)
def test_an_alarm_topic_needs_a_confirmed_subscriber(
    topic: deployment.Topic, finding: str | None
) -> None:
    assert faults(deployment.listeners([topic])) == ([finding] if finding else [])


def test_alarms_without_any_topic_are_reported() -> None:
    assert faults(deployment.listeners([])) == ["no alarm notifies a topic"]


def schedule(**more: Any) -> progress.Schedule:
    usual: dict[str, Any] = {"name": "s", "state": "ENABLED", "age_s": 1e6}
    usual["expression"] = "rate(15 minutes)"
    return progress.Schedule(**(usual | {"ran": True} | more))


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (schedule(), Verdict.WELL),
        (schedule(last="SUCCEEDED"), Verdict.WELL),
        (schedule(ran=False), Verdict.WRONG),
        (schedule(ran=False, age_s=60), Verdict.WELL),
        (schedule(state="DISABLED"), Verdict.WRONG),
        (schedule(last="FAILED"), Verdict.WRONG),
        (schedule(last="TIMED_OUT"), Verdict.WRONG),
        (schedule(expression="cron(0 3 * * ? *)"), Verdict.UNCHECKED),
    ],
)
def test_a_schedule_is_judged_by_its_state_and_last_run(
    one: progress.Schedule, verdict: Verdict
) -> None:
    assert progress.schedule_state(one).verdict is verdict


def test_the_window_of_a_schedule_is_two_intervals_and_10_minutes() -> None:
    assert progress.window("rate(15 minutes)") == 2 * 900 + 600
    assert progress.window("rate(1 hour)") == 2 * 3600 + 600
    assert progress.window("at(2026-11-23T00:00:00)") is None


# --- lag and queues -------------------------------------------------------------------------------


def test_gateways_not_flushed_in_time_are_named() -> None:
    ages = {f"g{n}": 10.0 for n in range(3)} | {"late": 7_200.0}
    [finding] = faults(progress.buffer_lag(ages, 1_800, more=False))
    assert finding == "1 gateway not flushed in time, the oldest edit for 2 h: late"
    assert faults(progress.buffer_lag({"g": 1_800.0}, 1_800, more=False)) == []
    assert faults(progress.buffer_lag({}, 1_800, more=False)) == []


def test_gateways_beyond_the_checked_ones_are_reported_as_unchecked() -> None:
    diagnoses = progress.buffer_lag({"g": 0.0}, 1_800, more=True)
    assert exit_code(diagnoses) == 2
    assert diagnoses[-1].what == "more than 1 gateway with edits to flush: not all looked at"


def test_the_lake_is_behind_when_a_claim_waits_too_long() -> None:
    fresh = progress.Waiting(3, 60, 0)
    assert faults(progress.lake_lag(fresh, 9_000, ["RUNNING", "SUCCEEDED"])) == []
    assert faults(progress.lake_lag(fresh, 9_000, [])) == []
    late = progress.Waiting(5_000, 86_400, 2, more=True)
    assert faults(progress.lake_lag(late, 9_000, ["RUNNING", "TIMEOUT", "SUCCEEDED"])) == [
        "5,000 batches or more waiting for the lake, one for 24 h",
        "2 batches could not be applied to the lake, and were set aside",
        "the latest run of the Glue job ended as TIMEOUT",
    ]


def test_dead_letters_and_old_messages_are_reported() -> None:
    assert faults(progress.queue_state(progress.Queue("flush", 40, 0, 3_600))) == []
    assert faults(progress.queue_state(progress.Queue("flush", 1, 2, 3_601))) == [
        "flush: 2 messages given up",
        "flush: 1 message waiting, the oldest for 60 min",
    ]
    assert faults(progress.queue_state(progress.Queue("announce", 1, 0, 21_600))) == []


# --- restore readiness ----------------------------------------------------------------------------

EARLIEST = datetime(2026, 11, 1, tzinfo=UTC)
NOW_S = datetime(2026, 11, 23, tzinfo=UTC).timestamp()


def table(**more: Any) -> protection.Table:
    usual: dict[str, Any] = {"name": "t", "restored": False, "stage": "prod", "off": ()}
    return protection.Table(**(usual | {"earliest": EARLIEST, "backups": 0} | more))


def test_a_restorable_table_is_reported_with_its_recovery_period_and_backups() -> None:
    [diagnosis] = protection.restore_state(table(backups=2), NOW_S)
    assert diagnosis.verdict is Verdict.WELL
    assert diagnosis.what == (
        "the stack's own table, t, can be restored to any moment of the last 22 days, and from "
        "2 backups"
    )


@pytest.mark.parametrize(
    ("one", "off"),
    [
        (table(off=(PROTECTION,)), [PROTECTION]),
        (table(off=(PROTECTION,), stage="ephemeral"), []),
        (table(off=(PROTECTION,), stage="ephemeral", restored=True), [PROTECTION]),
        (table(off=(RECOVERY, PROTECTION, STREAM), stage="ephemeral"), [RECOVERY, STREAM]),
    ],
)
def test_disabled_protections_of_a_table_are_named(one: protection.Table, off: list[str]) -> None:
    assert faults(protection.restore_state(one, NOW_S)) == [
        f"{n} is off for the table t" for n in off
    ]


def test_advice_differs_for_a_restored_table_and_the_stacks_own() -> None:
    [own] = protection.restore_state(table(off=(RECOVERY,)), NOW_S)
    [restored] = protection.restore_state(table(off=(RECOVERY,), restored=True), NOW_S)
    assert own.do.startswith("deploy again")
    assert restored.do.startswith("lakesync restored t")


def test_a_bucket_without_versioning_is_a_fault() -> None:
    assert protection.bucket_state("b", "Enabled").verdict is Verdict.WELL
    for status in ("", "Suspended"):
        assert faults([protection.bucket_state("b", status)])


# --- destinations and connectors ------------------------------------------------------------------


POLLED_S = 1_800_000_000.0
NOW_MS = int(POLLED_S * 1000)


def said(diagnoses: Sequence[Diagnosis]) -> list[tuple[str, str]]:
    return [(str(one.verdict), one.what) for one in diagnoses]


class Stack:
    """A deployment whose stores are in memory."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.now_s = POLLED_S
        self.memory, self.items = MemoryBuffer(), MemoryItemStore()
        self.connectors = ItemConnectors(self.items)
        self.aws = SimpleNamespace(
            output=lambda name: name, buffer=lambda _: self.memory, items=lambda _: self.items
        )
        self._keys = keys

    def part(self, parameter: str, place: int, default: int) -> int:
        return {("AlarmBounds", 2): 600}.get((parameter, place), default)

    def client(self, _: str) -> Any:
        def paginate(*, Bucket: str, Prefix: str) -> list[dict[str, Any]]:  # noqa: N803 - boto3's names
            assert Bucket == "LakeBucket"
            return [{"Contents": [{"Key": k} for k in self._keys if k.startswith(Prefix)]}, {}]

        return SimpleNamespace(get_paginator=lambda _: SimpleNamespace(paginate=paginate))


def claim(destination: str, age_s: float, *, failed: bool = False) -> str:
    last = stamp(NOW_MS - int(age_s * 1000))
    kind = "deliveries-failed" if failed else "deliveries"
    return f"{kind}/acme/{destination}/todos/{last - 1:020d}-{last:020d}.json"


def test_waiting_claims_of_a_destination_are_reported_by_the_oldest() -> None:
    keys = [
        claim("down", 60), claim("down", 7_300), claim("fine", 30), claim("paused", 9_000),
        "deliveries/acme/new/fill.json", claim("down", 10, failed=True),
        claim("gone", 10, failed=True), "deliveries/what-is-this",
    ]  # fmt: skip
    stack: Any = Stack(keys)
    admin = DestinationAdmin(stack.memory, Objects(), Messages(), wall_clock=lambda: NOW_MS)
    pusher(stack.memory).push("acme", push(insert("r1", at=1, n=1)))
    paused = destination_reader("paused", {"kind": "postgres", "secret": "paused"})
    admin.declare("acme", "paused", paused)
    admin.set_paused("acme", "paused", paused=True)

    assert said(check_destinations(stack)) == [
        ("wrong", "acme/down: 1 claim could not succeed, and were set aside"),
        ("wrong", "acme/down: 2 claims waiting, one for 2 h"),
        ("wrong", "acme/gone: 1 claim could not succeed, and were set aside"),
        ("well", "acme/paused: 1 claim waiting, as it is paused"),
    ]
    assert all(one.do for one in check_destinations(stack) if one.verdict == "wrong")


def test_destinations_and_connectors_not_all_looked_at_are_unchecked() -> None:
    assert [one[0] for one in said(destinations_state([], 60))] == ["well"]
    in_time = [Outlet("a/b", 1, 5, paused=False)]
    assert [one[0] for one in said(destinations_state(in_time, 60))] == ["well"]
    assert [one[0] for one in said(destinations_state([], 60, more=True))] == ["unchecked"]
    assert [one[0] for one in said(connectors_state([]))] == ["well"]
    assert [one[0] for one in said(connectors_state([], more=True))] == ["unchecked"]


@pytest.mark.parametrize(
    ("source", "findings"),
    [
        (Source("a/jira", paused=False), [("well", "1 connector polled without a fault")]),
        (Source("a/jira", paused=True, fault="X: y"), [("well", "a/jira is paused")]),
        (Source("a/jira", paused=False, fault="X: y"), [("wrong", "a/jira met a fault: X: y")]),
        (
            Source("a/jira", paused=False, late_s=7_300),
            [("wrong", "a/jira was not polled to its end for 2 h")],
        ),
        (Source("a/jira", paused=False, dead_letters=3), [("wrong", "a/jira: 3 rows refused")]),
    ],
)  # fmt: skip
def test_a_connector_with_a_fault_delay_or_dead_letters_is_reported(
    source: Source, findings: list[tuple[str, str]]
) -> None:
    assert said(connectors_state([source])) == findings
    assert all(one.do for one in connectors_state([source]) if one.verdict == "wrong")


@pytest.mark.parametrize(
    ("state", "late"),
    [
        (PollState(), False),
        (PollState(polled_ms=NOW_MS - 40 * 60_000), False),
        (PollState(polled_ms=NOW_MS - 61 * 60_000), True),
        (PollState(polled_ms=NOW_MS - 61 * 60_000, wait_until_ms=NOW_MS - 60_000), False),
    ],
)
def test_a_connector_is_late_after_three_intervals_unless_told_to_wait(
    state: PollState, *, late: bool
) -> None:
    store = ItemConnectors(MemoryItemStore())
    store.add("acme", "jira", Definition("jira", {}, every_minutes=15).to_json(), 0)
    leased = store.lease("acme", "jira", NOW_MS, NOW_MS + 1)
    assert leased
    store.save("acme", "jira", leased.lease, state.to_json(), 0)
    [stored] = store.connectors("acme")

    assert bool(source_of("acme", stored, POLLED_S).late_s) is late


def test_connectors_and_polled_flows_of_all_gateways_are_checked() -> None:
    stack: Any = Stack()
    for gateway in ("acme", "blue"):
        pusher(stack.memory).push(gateway, push(insert("r1", at=1, n=1)))
    stack.connectors.add("acme", "jira", Definition("jira", {}).to_json(), 0)
    flow = {"source": {"connector": "jira", "configuration": {}}}
    stack.connectors.add("blue", "moves", Definition("flow", flow).to_json(), 0)
    leased = stack.connectors.lease("blue", "moves", NOW_MS, NOW_MS + 1)
    fault = PollState(fault=Fault("ADAPTER_REFUSED", "no", NOW_MS))
    stack.connectors.save("blue", "moves", leased.lease, fault.to_json(), 0)

    assert json.loads(fault.to_json())["fault"]["code"] == "ADAPTER_REFUSED"
    assert said(check_connectors(stack)) == [
        ("wrong", "blue/moves met a fault: ADAPTER_REFUSED: no")
    ]
