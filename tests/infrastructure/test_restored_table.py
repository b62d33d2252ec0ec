"""A table restored from a backup can take the place of the stack's own, everywhere at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli.doctor.protection import PROTECTION, RECOVERY, STREAM, STREAM_VIEW, missing
from tests.infrastructure.stack import as_list, functions, resources, statements, template

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN, NAMED = {"Ref": "BufferTable"}, {"Ref": "BufferTableName"}
NAME = {"Fn::If": ["OwnBuffer", OWN, NAMED]}
NAMED_ARN = (
    "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/${BufferTableName}"
)
ARN = {"Fn::If": ["OwnBuffer", {"Fn::GetAtt": ["BufferTable", "Arn"]}, {"Fn::Sub": NAMED_ARN}]}


def buffer_functions() -> list[str]:
    return sorted(
        name
        for name, properties in functions().items()
        if "BUFFER_TABLE" in properties["Environment"]["Variables"]
    )


NAMES = ("ConnectionsTable", "ActionsTable", "AuditTable")
OTHERS = [{"Fn::GetAtt": [name, "Arn"]} for name in NAMES]
STREAM_ARN = {
    "Fn::If": [
        "OwnBuffer",
        {"Fn::GetAtt": ["BufferTable", "StreamArn"]},
        {"Fn::Sub": f"{NAMED_ARN}/stream/${{BufferStreamLabel}}"},
    ]
}
INDEX = {
    "Fn::If": [
        "OwnBuffer",
        {"Fn::Sub": "${BufferTable.Arn}/index/unflushed"},
        {"Fn::Sub": f"{NAMED_ARN}/index/unflushed"},
    ]
}
"""All that the schedule of flushes reads."""


def unconditional(value: Any, path: str = "") -> Iterator[str]:
    """Yield where the stack's own table is named whether or not another is in use."""
    if value in (OWN, {"Fn::GetAtt": ["BufferTable", "Arn"]}):
        yield path
    elif isinstance(value, dict):
        text = value.get("Fn::Sub")
        if isinstance(text, str) and re.search(r"\$\{BufferTable[.}]", text):
            yield path
        for name, part in value.items():
            if name == "Fn::If" and part[0] == "OwnBuffer":
                continue
            yield from unconditional(part, f"{path}/{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from unconditional(part, f"{path}/{number}")


def test_stack_uses_its_own_buffer_table_by_default() -> None:
    assert template()["Parameters"]["BufferTableName"]["Default"] == ""
    assert template()["Conditions"]["OwnBuffer"] == {"Fn::Equals": [NAMED, ""]}


@pytest.mark.parametrize("name", buffer_functions())
def test_functions_know_and_may_access_only_the_buffer_table_in_use(name: str) -> None:
    allowed = [
        resource
        for owner, statement in statements()
        if owner == name
        and any(action.startswith("dynamodb:") for action in as_list(statement["Action"]))
        for resource in as_list(statement["Resource"])
        if resource not in (*OTHERS, STREAM_ARN)
        and ":event-bus/" not in str(resource)
        and statement["Action"] != "dynamodb:ListStreams"  # AWS takes no resource for it
    ]

    assert functions()[name]["Environment"]["Variables"]["BUFFER_TABLE"] == NAME
    assert allowed
    assert all(each == (INDEX if name == "ScheduleFlushFunction" else ARN) for each in allowed)


def test_stacks_own_buffer_table_is_not_referenced_when_a_restored_one_is_in_use() -> None:
    assert template()["Outputs"]["BufferTable"]["Value"] == NAME
    assert list(unconditional(template()["Resources"])) == []
    assert list(unconditional(template()["Outputs"])) == []


def test_notifications_read_the_stream_of_the_table_in_use_if_its_label_is_known() -> None:
    source = resources("AWS::Lambda::EventSourceMapping")["NotifySource"]

    assert source["Properties"]["EventSourceArn"] == STREAM_ARN
    assert template()["Conditions"][source["Condition"]] == {
        "Fn::Or": [
            {"Condition": "OwnBuffer"},
            {"Fn::Not": [{"Fn::Equals": [{"Ref": "BufferStreamLabel"}, ""]}]},
        ]
    }


def test_restored_table_needs_the_recovery_protection_and_stream_of_the_stacks_own() -> None:
    own = resources("AWS::DynamoDB::Table")["BufferTable"]["Properties"]
    recovery = own["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]

    assert recovery is True
    assert own["StreamSpecification"] == {"StreamViewType": STREAM_VIEW}
    assert "DeletionProtectionEnabled" in own
    assert missing({}, {}) == [RECOVERY, PROTECTION, STREAM]
    on = {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
    stream = {"StreamEnabled": True, "StreamViewType": STREAM_VIEW}
    assert missing({"DeletionProtectionEnabled": True, "StreamSpecification": stream}, on) == []
