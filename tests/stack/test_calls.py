"""Every call that the deployed code made is allowed to its role on AWS.

It comes last: what it reads is the record of all calls that the tests before it caused.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.infrastructure.transformed import transformed
from tests.support.policies import allowed, matches
from tests.support.resolved import Deployed
from tests.support.roles import asked_by_aws, roles
from tests.support.some import some

if TYPE_CHECKING:
    from lakesync.cli.aws import Aws

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def deployed(aws: Aws) -> Deployed:
    """The transformed template with what the stack has in place of its references."""
    client = aws.client("cloudformation")
    stack = client.describe_stacks(StackName=aws.stack)["Stacks"][0]
    pages = client.get_paginator("list_stack_resources").paginate(StackName=aws.stack)
    physical = {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for page in pages
        for one in page["StackResourceSummaries"]
    }
    parameters = {one["ParameterKey"]: one["ParameterValue"] for one in stack["Parameters"]}
    return Deployed(transformed(), parameters, physical, stack["StackId"])


@pytest.fixture(scope="module")
def record(stack_folder: Path) -> list[dict[str, Any]]:
    """What the emulator's door wrote down."""
    lines = (stack_folder / "calls.jsonl").read_text().splitlines()
    return list(some(json.loads(line) for line in lines))


@pytest.fixture(scope="module")
def asked(deployed: Deployed, record: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every question to a role, by those who called and by AWS itself."""
    recorded = [
        entry | {"role": entry["role"] or role_of(entry)} for entry in record if "action" in entry
    ]
    of_aws = [
        question._asdict() | {"context": dict(question.context), "operation": "of AWS itself"}
        for question in asked_by_aws(deployed)
    ]
    return [*recorded, *some(of_aws)]


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """What is meant to be as it is, each with its reason."""
    return tomllib.loads((HERE / "calls.toml").read_text())


def role_of(entry: dict[str, Any]) -> str:
    """Return the role of a session: ``assumed-role/Role/session``."""
    return str(entry["caller"].split("/")[1])


def test_each_function_and_job_calls_under_a_key_of_its_own(record: list[dict[str, Any]]) -> None:
    callers: dict[str, set[str]] = {}
    for entry in record:
        callers.setdefault(entry["key"], set()).add(entry["caller"])

    assert {key: names for key, names in callers.items() if len(names) > 1} == {}


def test_it_is_known_of_every_call_what_aws_asks(record: list[dict[str, Any]]) -> None:
    unknown = {
        (role_of(entry), entry["operation"])
        for entry in record
        if "unknown" in entry["operation"]
    }  # fmt: skip

    assert unknown == set(), "say in tools/local_stack/calls what AWS asks about these"


def test_every_call_is_allowed_to_its_role(
    deployed: Deployed, asked: list[dict[str, Any]], listed: dict[str, Any]
) -> None:
    granted = roles(deployed)
    meant = {
        (deployed.physical[each["role"]], each["action"], each["resource"])
        for each in listed["refused"]
    }
    refused = {
        (one["role"], one["operation"], one["action"], one["resource"], str(one["context"]))
        for one in asked
        if not allowed(
            [each.statement for each in granted[one["role"]]],
            one["action"], one["resource"], one["context"],
        )
    }  # fmt: skip

    not_meant = {
        call
        for call in refused
        if not any(
            (call[0], call[2]) == (role, action) and matches(call[3], resource)
            for role, action, resource in meant
        )
    }
    assert sorted(not_meant)[:20] == []
