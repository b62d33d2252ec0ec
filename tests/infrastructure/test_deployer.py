"""Who deploys: the least policy covers every resource of the template, and names real actions."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest

from lakesync.cli.doctor.checks import CHECKS_AHEAD
from lakesync.cli.doctor.deployer import (
    DEPLOYING,
    GRANTS,
    PASSED,
    POLICY_CHARACTERS_MAX,
    characters,
    policies,
    statements,
)
from lakesync.cli.doctor.deployment import OUTPUTS, stack_state
from tests.infrastructure.transformed import transformed
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "docs" / "deployer"
ROLES = frozenset({"Role", "RoleArn", "CloudWatchRoleArn", "ExecutionRoleArn"})
# IAM's name of a service -> botocore's.
SERVICES = {"states": "stepfunctions"}
# Actions that are not named like an operation (Service Authorization Reference): those that
# permit several operations, and API Gateway's, which are methods of HTTP.
OTHERWISE = {
    "lambda": {"InvokeFunction"},
    "apigateway": {"GET", "POST", "PUT", "PATCH", "DELETE"},
    "s3": {
        "ListBucket", "GetEncryptionConfiguration", "PutEncryptionConfiguration",
        "GetBucketPublicAccessBlock", "PutBucketPublicAccessBlock", "GetBucketCORS",
        "PutBucketCORS", "GetLifecycleConfiguration", "PutLifecycleConfiguration",
    },
    "logs": {
        "CreateLogDelivery", "GetLogDelivery", "UpdateLogDelivery", "DeleteLogDelivery",
        "ListLogDeliveries",
    },
}  # fmt: skip
# A resource of these is changed by the same request that makes it, or never.
WITHOUT_DELETION = {"AWS::ApiGateway::Account", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy"}


def kinds() -> dict[str, list[Any]]:
    gathered: dict[str, list[Any]] = {}
    for resource in transformed()["Resources"].values():
        gathered.setdefault(resource["Type"], []).append(resource.get("Properties", {}))
    return gathered


def actions(kind: str) -> set[str]:
    return {action for grant in GRANTS[kind] for action in grant.actions.split()}


def test_deployer_policy_covers_exactly_the_resource_types_of_the_template() -> None:
    assert set(GRANTS) == set(kinds()), "lakesync.cli.doctor.deployer.GRANTS"


@pytest.mark.parametrize("kind", sorted(GRANTS))
def test_deployer_may_create_read_and_delete_each_resource_type(kind: str) -> None:
    verbs = {
        "make": ("Create", "Put", "Add", "Publish", "POST", "PATCH", "Subscribe", "Grant", "Change",
                 "Set"),
        "read": ("Get", "Describe", "List", "GET"),
        "delete": ("Delete", "Remove", "Revoke", "Unsubscribe", "Schedule", "Change", "DELETE"),
    }  # fmt: skip
    if kind.startswith("Custom::"):
        assert actions(kind) == {"InvokeFunction"}, "what it is made of is the function's business"
        return
    lacking = {
        verb
        for verb, beginnings in verbs.items()
        if not any(action.startswith(beginnings) for action in actions(kind))
    }
    assert lacking - ({"delete"} if kind in WITHOUT_DELETION else set()) == set()


def passed(value: Any) -> Iterator[str]:
    """Yield the properties of a resource that pass a role."""
    if isinstance(value, dict):
        yield from (name for name in value if name in ROLES)
        for each in value.values():
            yield from passed(each)
    elif isinstance(value, list):
        for each in value:
            yield from passed(each)


def test_deployer_may_pass_roles_to_exactly_the_services_that_need_them() -> None:
    passing = {kind for kind, every in kinds().items() if any(passed(every))}
    assert passing == set(PASSED)
    allowed = next(each for each in statements() if each["Action"] == ["iam:PassRole"])
    services = allowed["Condition"]["StringEquals"]["iam:PassedToService"]
    assert set(services) == set(PASSED.values())


def test_deployer_may_tag_every_taggable_resource_type() -> None:
    """SAM tags what it makes, and CloudFormation all of a stack that has tags."""
    taggable = {kind for kind, every in kinds().items() if any("Tags" in one for one in every)} - {
        "AWS::Lambda::EventSourceMapping"
    }
    lacking = {
        kind
        for kind in taggable
        if not any("Tag" in action for action in actions(kind)) and "POST" not in actions(kind)
    }
    assert lacking == set()


def test_every_action_of_the_deployer_policy_exists_in_aws() -> None:
    session = botocore.session.get_session()
    unknown = set()
    for grant in (*DEPLOYING, *(grant for grants in GRANTS.values() for grant in grants)):
        model = session.get_service_model(SERVICES.get(grant.service, grant.service))
        known = {*model.operation_names, *OTHERWISE.get(grant.service, ())}
        unknown |= {
            f"{grant.service}:{each}" for each in grant.actions.split() if each not in known
        }
    assert unknown == set()


def test_stored_deployer_policies_are_current_and_fit_managed_policies() -> None:
    """They are renewed by `python -m tests.support.deployer_pages`."""
    documents = policies()
    written = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("policy-*.json"))]
    assert written == documents
    assert len(documents) <= 10, "managed policies of one role"
    assert all(characters(each["Statement"]) <= POLICY_CHARACTERS_MAX for each in documents)


def test_operations_page_covers_every_predeployment_check_and_failed_stack_state() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    section = page.partition("\n## Before a deployment\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    assert all(cell.strip() for row in rows for cell in row), "each says what to do"
    named = set(re.findall(r"`([a-z-]+)`", " ".join(row[0] for row in rows)))
    assert named == set(CHECKS_AHEAD)
    failures = set(re.findall(r"`([A-Z_]+_(?:COMPLETE|FAILED))`", section))
    assert failures == {"ROLLBACK_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "UPDATE_ROLLBACK_FAILED"}
    for status in failures:
        [told, *_] = stack_state(status, OUTPUTS)
        [row] = [row for row in rows if f"(`{status}`)" in row[0]]
        commands = re.findall(r"`((?:lakesync|aws) [^`]+)`", told.do)
        assert all(f"`{command}`" in row[2] for command in commands)
        assert "deploy again" in row[2]
    for each in some(policies_named(section)):
        assert (FOLDER / each).exists()


def policies_named(section: str) -> set[str]:
    named = set(re.findall(r"\(deployer/([^)]+)\)", section))
    assert len(named) == len(policies())
    return named
