"""Secrets and schedules of connectors, as AWS has them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from lakesync.errors import AdapterFailed
from lakesync.runtime.polls import (
    ABSENT_S_MAX,
    REMEMBERED_S_MAX,
    EventBridgePolls,
    Secrets,
    schedule_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "eu-central-1"
ROLE = "arn:aws:iam::123456789012:role/poll"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """AWS, as moto has it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield


@pytest.mark.law("N8")
@pytest.mark.usefixtures("aws")
def test_connector_secrets_are_stored_cached_forgotten_and_removed() -> None:
    client: Any = boto3.client("secretsmanager", region_name=REGION)
    now = [0.0]
    secrets = Secrets(lambda: client, "stack/connectors/", seconds=lambda: now[0])
    assert secrets.get("g/c") == {}
    client.create_secret(Name="stack/connectors/g/c", SecretString='{"password": "none"}')
    assert secrets.get("g/c") == {}
    now[0] += ABSENT_S_MAX
    assert secrets.get("g/c") == {"password": "none"}, "that there is none is remembered briefly"
    secrets.put("g/c", {"password": "one"})
    secrets.put("g/c", {"password": "two"})
    assert secrets.get("g/c") == {"password": "two"}
    assert [each["Name"] for each in client.list_secrets()["SecretList"]] == [
        "stack/connectors/g/c"
    ]
    client.put_secret_value(SecretId="stack/connectors/g/c", SecretString='{"password": "three"}')
    assert secrets.get("g/c") == {"password": "two"}, "it is remembered"
    now[0] += REMEMBERED_S_MAX
    assert secrets.get("g/c") == {"password": "three"}
    client.put_secret_value(SecretId="stack/connectors/g/c", SecretString='{"password": "four"}')
    assert secrets.get_anew("g/c") == {"password": "four"}
    assert secrets.get("g/c") == {"password": "four"}
    secrets.remove("g/c")
    secrets.remove("g/c")

    assert client.list_secrets()["SecretList"] == []


@pytest.mark.law("N7")
@pytest.mark.usefixtures("aws")
def test_a_poll_schedule_is_created_changed_triggered_and_removed() -> None:
    clients: dict[str, Any] = {
        name: boto3.client(name, region_name=REGION) for name in ("scheduler", "stepfunctions")
    }
    clients["scheduler"].create_schedule_group(Name="polls")
    definition = {"StartAt": "a", "States": {"a": {"Type": "Succeed"}}}
    machine = clients["stepfunctions"].create_state_machine(
        name="poll", definition=json.dumps(definition), roleArn=ROLE
    )["stateMachineArn"]
    polls = EventBridgePolls(clients.__getitem__, "polls", machine, ROLE)
    polls.put("g", "c", 1, paused=False)
    first = clients["stepfunctions"].list_executions(stateMachineArn=machine)["executions"]
    assert len(first) == 1, "the first poll is begun at once"
    polls.put("g", "c", 30, paused=True)

    made = clients["scheduler"].get_schedule(Name=schedule_name("g", "c"), GroupName="polls")
    assert (made["ScheduleExpression"], made["State"]) == ("rate(30 minutes)", "DISABLED")
    assert json.loads(made["Target"]["Input"]) == {"gateway": "g", "name": "c"}
    assert (made["Target"]["Arn"], made["Target"]["RoleArn"]) == (machine, ROLE)
    polls.poll_now("g", "c")
    executions = clients["stepfunctions"].list_executions(stateMachineArn=machine)["executions"]
    assert len(executions) == 2
    polls.remove("g", "c")
    polls.remove("g", "c")
    assert clients["scheduler"].list_schedules(GroupName="polls")["Schedules"] == []
    with pytest.raises(AdapterFailed, match="start_execution"):
        EventBridgePolls(clients.__getitem__, "polls", f"{machine}x", ROLE).poll_now("g", "c")


@pytest.mark.usefixtures("aws")
def test_poll_schedules_created_together_are_spread_over_the_interval() -> None:
    scheduler = boto3.client("scheduler", region_name=REGION)
    scheduler.create_schedule_group(Name="polls")
    asked: list[str] = []

    class Machines:
        def start_execution(self, **request: str) -> dict[str, str]:
            asked.append(request["input"])
            return {}

    clients: dict[str, Any] = {"scheduler": scheduler, "stepfunctions": Machines()}
    now_s = time.time()

    def starts(after_s: float) -> list[float]:
        polls = EventBridgePolls(
            clients.__getitem__, "polls", "machine", ROLE, lambda: now_s + after_s
        )
        for number in range(60):
            polls.put(f"g{number}", "shop", 15, paused=False)
        names = [schedule_name(f"g{number}", "shop") for number in range(60)]
        made = [scheduler.get_schedule(Name=name, GroupName="polls") for name in names]
        return [each["StartDate"].timestamp() for each in made]

    turns = starts(0)
    assert all(now_s <= turn <= now_s + 15 * 60 for turn in turns), "within an interval, not before"
    assert len({turn // 60 for turn in turns}) > 10
    assert len(asked) == 60, "each is polled once at once"
    # A change keeps a connector's place, as far as the interval stays.
    assert [(turn - again) % (15 * 60) for turn, again in zip(turns, starts(700), strict=True)] == (
        [0] * 60
    )
    assert len(asked) == 60
