"""The template stays below AWS's limits, which no emulator enforces."""

from __future__ import annotations

import json
import warnings

import pytest

from tests.infrastructure import aws_limits
from tests.infrastructure.aws_limits import LIMITS, Use, uses
from tests.infrastructure.transformed import made, transformed
from tests.support.some import some

FEW = 10
"""A limit below this is used up by a design; a share of it says nothing."""


def _is_passed(use: Use) -> bool:
    return use.used > (use.most if use.most < FEW else use.most * 0.95)


def test_template_stays_below_every_limit() -> None:
    passed = [use for use in some(uses()) if _is_passed(use)]

    assert passed == []


class NearLimit(UserWarning):
    """More than 80 % of a limit is used."""


@pytest.mark.filterwarnings("default::tests.infrastructure.test_limits.NearLimit")
def test_limits_that_are_more_than_80_percent_used_give_a_warning() -> None:
    for use in uses():
        if use.most >= FEW and use.used > use.most * 0.8:
            warnings.warn(
                f"{use.of}: {use.used} of {use.most} {use.limit}", NearLimit, stacklevel=1
            )


def test_every_limit_has_a_measured_use() -> None:
    assert {use.limit for use in uses()} == set(LIMITS)


@pytest.mark.parametrize(
    ("kind", "change", "limit"),
    [
        (
            "AWS::CloudWatch::Dashboard",
            lambda asked: asked["DashboardBody"]["Fn::Sub"].__setitem__(
                0,
                json.dumps({"widgets": [{"type": "alarm", "properties": {"alarms": 101 * ["a"]}}]}),
            ),
            "alarms of a dashboard's alarm widget",
        ),
        (
            "AWS::Lambda::Function",
            lambda asked: asked.update(Environment={"Variables": {"A": 4_096 * "x"}}),
            "bytes of a function's environment",
        ),
        (
            "AWS::IAM::Role",
            lambda asked: asked.update(Policies=[{"PolicyDocument": {"Statement": 10_240 * "x"}}]),
            "characters of a role's inline policies",
        ),
        (
            "AWS::CloudWatch::Alarm",
            lambda asked: asked.update(Period=300, EvaluationPeriods=289),
            "seconds that an alarm of short periods looks at",
        ),
    ],
)
def test_exceeded_limit_is_reported(
    kind: str, change: object, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(json.dumps(transformed()))
    resource = next(each for each in whole["Resources"].values() if each["Type"] == kind)
    assert callable(change)
    change(resource["Properties"])
    monkeypatch.setattr(aws_limits, "transformed", lambda: whole)

    assert limit in {use.limit for use in uses() if _is_passed(use)}


def test_sixty_more_routes_of_one_function_exceed_the_limit_of_its_resource_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each route is a permission in the alias's policy; administration has one for each method."""
    whole = json.loads(json.dumps(transformed()))
    name, permission = next(
        (name, each) for name, each in whole["Resources"].items()
        if each["Type"] == "AWS::Lambda::Permission" and name.startswith("AdminFunction")
    )  # fmt: skip
    whole["Resources"] |= {f"{name}{number}": permission for number in range(60)}
    monkeypatch.setattr(aws_limits, "transformed", lambda: whole)

    passed = {use.limit for use in uses() if _is_passed(use)}
    assert "bytes of a function's resource policy" in passed


# --- what AWS asks that is no number --------------------------------------------------------------


def test_glue_assumes_its_roles_without_a_condition() -> None:
    """Glue may not name the account; a role is passed within its account alone."""
    trusts = [
        statement
        for role in made("AWS::IAM::Role").values()
        for statement in role["AssumeRolePolicyDocument"]["Statement"]
        if statement["Principal"] == {"Service": "glue.amazonaws.com"}
    ]

    assert len(trusts) == len(made("AWS::Glue::Job"))
    assert all("Condition" not in trust for trust in trusts)


def test_jobs_may_create_only_log_groups_of_the_stack() -> None:
    for job in made("AWS::Glue::Job").values():
        # Under Lake Formation another role, whose rights are the same.
        usual = job["Role"].get("Fn::If", [job["Role"]])[-1]
        logs = [
            statement
            for policy in made("AWS::IAM::Role")[usual["Fn::GetAtt"][0]]["Policies"]
            for statement in policy["PolicyDocument"]["Statement"]
            if "logs:PutLogEvents" in statement["Action"]
        ]
        prefix = job["DefaultArguments"]["--custom-logGroup-prefix"]["Fn::Sub"]

        assert ["logs:CreateLogGroup" in statement["Action"] for statement in logs] == [True]
        assert logs[0]["Resource"]["Fn::Sub"].endswith(f":log-group:{prefix}/*")


def test_no_role_reads_every_queue_of_the_account() -> None:
    for name, role in made("AWS::IAM::Role").items():
        assert "AWSLambdaSQSQueueExecutionRole" not in json.dumps(role), name


def test_web_socket_access_logs_are_off_by_default_and_need_a_role_of_the_account() -> None:
    every = transformed()["Resources"]
    (stage,) = [
        each["Properties"] for each in every.values()
        if each["Type"] == "AWS::ApiGatewayV2::Stage" and each["Properties"]["StageName"] == "live"
    ]  # fmt: skip

    assert transformed()["Parameters"]["SocketAccessLogs"]["Default"] == "off"
    condition, logs, nothing = stage["AccessLogSettings"]["Fn::If"]
    assert (condition, nothing) == ("LogsSockets", {"Ref": "AWS::NoValue"})
    assert logs["DestinationArn"] == {"Fn::GetAtt": ["SocketLogs", "Arn"]}
    (tag,) = every["SocketLogs"]["Properties"]["Tags"]
    assert tag["Value"]["Fn::If"][:2] == ["MakesLogRole", {"Ref": "LogAccount"}]
    for name in ("LogAccount", "LogRole"):
        assert every[name]["DeletionPolicy"] == "Retain"


def test_state_machines_run_in_every_partition() -> None:
    for machine in made("AWS::StepFunctions::StateMachine").values():
        assert machine["DefinitionSubstitutions"]["Partition"] == {"Ref": "AWS::Partition"}
