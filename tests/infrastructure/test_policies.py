"""Statements of roles: decided as IAM decides, and made of what AWS knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infrastructure.transformed import transformed
from tests.support.policies import PolicyNotUnderstoodError, Statement, allowed
from tests.support.resolved import NOTHING, Deployed, UnresolvedError
from tests.support.roles import Granted, asked_by_aws, roles
from tests.support.some import some
from tools.local_stack.paths import SAM

ID = "arn:aws:cloudformation:us-east-1:000000000000:stack/s/1-2-3"


def deployed(**parameters: str) -> Deployed:
    """A stack whose resources have their logical ids as names."""
    template = transformed()
    physical = {name: _physical(name, each) for name, each in template["Resources"].items()}
    return Deployed(template, parameters, physical, ID)


def _physical(name: str, resource: dict[str, Any]) -> str:
    if resource["Type"] == "AWS::Lambda::Alias":
        function = resource["Properties"]["FunctionName"]["Ref"]
        return f"arn:aws:lambda:us-east-1:000000000000:function:{function}:live"
    if resource["Type"] == "AWS::StepFunctions::StateMachine":
        return f"arn:aws:states:us-east-1:000000000000:stateMachine:{name}"
    return name


def every_statement(stack: Deployed) -> list[Granted]:
    return some(one for granted in roles(stack).values() for one in granted if one.ours)


def statement(
    action: Any = "s3:GetObject", resource: Any = "arn:aws:s3:::b/*", **condition: Any
) -> Statement:
    return Statement.of(
        {"Effect": "Allow", "Action": action, "Resource": resource, "Condition": condition}
    )


def test_policy_actions_match_in_any_case_and_resources_only_in_their_own() -> None:
    one = statement(["S3:get*"], ["arn:aws:s3:::b/a?/*"])

    assert one.applies("s3:GetObject", "arn:aws:s3:::b/ab/c/d", {})
    assert not one.applies("s3:PutObject", "arn:aws:s3:::b/ab/c", {})
    assert not one.applies("s3:GetObject", "arn:aws:s3:::b/a/c", {})
    assert not one.applies("s3:GetObject", "arn:aws:s3:::B/ab/c", {})
    assert not statement("s3:GetObject", "b/[a]").applies("s3:GetObject", "b/a", {})


def test_explicit_deny_overrides_allow_and_the_default_is_deny() -> None:
    allow = statement()
    deny = allow._replace(effect="Deny")

    assert allowed([allow], "s3:GetObject", "arn:aws:s3:::b/k", {})
    assert not allowed([allow, deny], "s3:GetObject", "arn:aws:s3:::b/k", {})
    assert not allowed([], "s3:GetObject", "arn:aws:s3:::b/k", {})


@pytest.mark.parametrize(
    ("operator", "values", "applies"),
    [
        ("StringEquals", ["a/"], True),
        ("StringEquals", ["b/"], False),
        ("StringEquals", None, False),
        ("StringEqualsIfExists", None, True),
        ("StringEqualsIfExists", ["b/"], False),
        ("StringNotEquals", ["a/"], False),
        ("StringNotEquals", None, True),
        ("ForAllValues:StringEquals", ["a/", "a/"], True),
        ("ForAllValues:StringEquals", ["a/", "b/"], False),
        ("ForAllValues:StringEquals", None, True),
        ("ForAnyValue:StringEquals", ["b/", "a/"], True),
        ("ForAnyValue:StringEquals", None, False),
    ],
)
def test_policy_conditions_are_evaluated_as_aws_documents(
    operator: str,
    values: list[str] | None,
    applies: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    one = statement(**{operator: {"s3:prefix": "a/"}})
    context = {} if values is None else {"s3:prefix": values}

    assert one.applies("s3:GetObject", "arn:aws:s3:::b/k", context) is applies


@pytest.mark.parametrize(
    "written",
    [
        {"NotAction": "s3:*"},
        {"Condition": {"IpAddress": {"s3:prefix": "10.0.0.0/8"}}},
        {"Condition": {"StringEquals": {"aws:SourceIp": "10.0.0.1"}}},
        {"Resource": "arn:aws:s3:::b/${aws:username}"},
        {"Resource": {"Ref": "LakeBucket"}},
    ],
    ids=json.dumps,
)
def test_policy_statement_with_an_unsupported_element_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(PolicyNotUnderstoodError):
        Statement.of({"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"} | written)


def test_template_references_resolve_as_in_cloudformation() -> None:
    stack = deployed(Stage="prod")

    assert stack.value({"Fn::Sub": "${AWS::Region}/${LakeBucket.Arn}"}) == (
        "us-east-1/arn:aws:s3:::LakeBucket"
    )
    assert stack.value({"Fn::If": ["IsCloud", [1, {"Ref": "AWS::NoValue"}], 2]}) == [1]
    assert (
        stack.value({"Fn::Select": [2, {"Fn::Split": ["/", {"Ref": "AWS::StackId"}]}]}) == "1-2-3"
    )
    assert stack.value({"Ref": "AWS::NoValue"}) is NOTHING
    with pytest.raises(UnresolvedError):
        stack.value({"Fn::GetAtt": ["LakeBucket", "Colour"]})


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """AWS's Service Authorization Reference, as cfn-lint carries it beside SAM's command line."""
    (path,) = SAM.parent.parent.glob("lib/*/site-packages/cfnlint/data/*/Policies.json")
    known: dict[str, Any] = json.loads(path.read_text())
    return known


def test_every_action_in_a_policy_exists_in_aws(reference: dict[str, Any]) -> None:
    for one in some(every_statement(deployed())):
        for action in one.statement.actions:
            service, name = action.lower().split(":")
            assert name in reference[service]["Actions"], one.where


def test_actions_without_resource_types_are_allowed_on_all_resources(
    reference: dict[str, Any],
) -> None:
    """AWS refuses `dynamodb:ListStreams` on a stream's name: it only knows it on ``*``."""
    for one in some(every_statement(deployed())):
        for action in one.statement.actions:
            service, name = action.lower().split(":")
            if not reference[service]["Actions"][name].get("Resources"):
                assert one.statement.resources == ("*",), (one.where, action)


def test_roles_are_allowed_every_call_that_aws_makes_with_them() -> None:
    stack = deployed()
    granted = roles(stack)
    for question in some(asked_by_aws(stack)):
        statements = [one.statement for one in granted[question.role]]
        assert allowed(statements, question.action, question.resource, dict(question.context)), (
            question
        )
