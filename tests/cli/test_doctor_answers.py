"""The doctor's questions to AWS and what it makes of the answers, also those no emulator gives."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import ANY

from lakesync.cli.doctor import EXIT_WELL, Deployed, Verdict, checks, exit_code, well
from lakesync.cli.doctor.deployment import (
    RATES,
    RESERVED,
    check_alarms,
    check_quotas,
    check_service_quotas,
)
from lakesync.cli.doctor.progress import check_schedules
from lakesync.cli.doctor.protection import (
    Denied,
    Names,
    Unresolved,
    check_permissions,
    needed,
    needs_of,
    permissions_state,
)
from tests.infrastructure.stack import functions, statements, template
from tests.support.command_lines import run
from tests.support.stubbed_account import Account

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.cli.doctor import Diagnosis

STACK_ID = "arn:aws:cloudformation:eu-west-1:123456789012:stack/prod/1a2b-3c"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:alarms"
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:sweep"


@pytest.fixture
def account() -> Iterator[Account]:
    account = Account("prod")
    with account.open:
        yield account
        for stub in account.stubs.values():
            stub.assert_no_pending_responses()


def deployed(account: Account, resources: list[tuple[str, str, str]]) -> Deployed:
    """Return a stack of these resources: logical id, type, physical id."""
    stack = {
        "StackName": "prod",
        "StackId": STACK_ID,
        "CreationTime": datetime(2026, 11, 1, tzinfo=UTC),
        "StackStatus": "CREATE_COMPLETE",
    }
    summaries = [
        {"LogicalResourceId": logical, "ResourceType": kind, "PhysicalResourceId": physical,
         "LastUpdatedTimestamp": datetime(2026, 11, 1, tzinfo=UTC),
         "ResourceStatus": "CREATE_COMPLETE"}
        for logical, kind, physical in resources
    ]  # fmt: skip
    subject = Deployed(account)
    subject.__dict__["stack"] = stack
    account.__dict__["outputs"] = {}
    account.answers("cloudformation", "list_stack_resources", {"StackResourceSummaries": summaries})
    return subject


def at_stage(subject: Deployed, stage: str) -> None:
    """Have the stack a stage, in the place of its other parameters."""
    parameters = [{"ParameterKey": "Stage", "ParameterValue": stage}]
    subject.__dict__["stack"] = {"Parameters": parameters}


def findings(diagnoses: list[Diagnosis]) -> list[tuple[str, str]]:
    return [(str(diagnosis.verdict), diagnosis.what) for diagnosis in diagnoses]


# --- permissions ----------------------------------------------------------------------------------

ROLE = "arn:aws:iam::123456789012:role/prod-PushRole"
TABLE = "arn:aws:dynamodb:eu-west-1:123456789012:table/prod-table"
PROCESSED = {
    "Resources": {
        "Table": {"Type": "AWS::DynamoDB::Table"},
        "Bucket": {"Type": "AWS::S3::Bucket"},
        "PushRole": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "Policies": [
                    {
                        "PolicyDocument": {
                            "Statement": [
                                {
                                    "Effect": "Allow",
                                    "Action": ["dynamodb:GetItem", "dynamodb:PutItem"],
                                    "Resource": {"Fn::GetAtt": ["Table", "Arn"]},
                                },
                                {
                                    "Effect": "Allow",
                                    "Action": "s3:ListBucket",
                                    "Resource": {"Fn::GetAtt": "Bucket.Arn"},
                                    "Condition": {"StringLike": {"s3:prefix": "checkpoints/*"}},
                                },
                            ]
                        }
                    }
                ]
            },
        },
    }
}
RESOURCES = [
    ("Table", "AWS::DynamoDB::Table", "prod-table"),
    ("Bucket", "AWS::S3::Bucket", "prod-lake"),
    ("PushRole", "AWS::IAM::Role", "prod-PushRole"),
]


def decided(action: str, decision: str = "allowed", **more: Any) -> dict[str, Any]:
    return {"EvalActionName": action, "EvalDecision": decision} | more


def simulated(account: Account, first: list[Any], second: list[Any]) -> list[Diagnosis]:
    account.answers("cloudformation", "get_template", {"TemplateBody": json.dumps(PROCESSED)})
    subject = deployed(account, RESOURCES)
    asked = {
        "PolicySourceArn": ROLE,
        "ActionNames": ["dynamodb:GetItem", "dynamodb:PutItem"],
        "ResourceArns": [TABLE],
        "ContextEntries": [],
    }
    account.answers("iam", "simulate_principal_policy", {"EvaluationResults": first}, asked)
    asked_of_s3 = {
        "PolicySourceArn": ROLE,
        "ActionNames": ["s3:ListBucket"],
        "ResourceArns": ["arn:aws:s3:::prod-lake"],
        "ContextEntries": [
            {
                "ContextKeyName": "s3:prefix",
                "ContextKeyValues": ["checkpoints/x"],
                "ContextKeyType": "string",
            }
        ],
    }
    account.answers("iam", "simulate_principal_policy", {"EvaluationResults": second}, asked_of_s3)
    return check_permissions(subject)


def test_every_statement_of_the_deployed_template_is_simulated(account: Account) -> None:
    allowed = [decided("dynamodb:GetItem"), decided("dynamodb:PutItem")]
    diagnoses = simulated(account, allowed, [decided("s3:ListBucket")])
    assert findings(diagnoses) == [("well", "2 permissions are in force")]


def test_a_denied_permission_is_named_with_the_policy_that_denies(account: Account) -> None:
    diagnoses = simulated(
        account,
        [
            decided(
                "dynamodb:GetItem",
                "implicitDeny",
                OrganizationsDecisionDetail={"AllowedByOrganizations": False},
            ),
            decided(
                "dynamodb:PutItem",
                "implicitDeny",
                PermissionsBoundaryDecisionDetail={"AllowedByPermissionsBoundary": False},
            ),
        ],
        [decided("s3:ListBucket", "explicitDeny")],
    )
    assert findings(diagnoses) == [
        ("wrong", f"PushRole may not dynamodb:GetItem on {TABLE}: a policy of the organisation"),
        ("wrong", f"PushRole may not dynamodb:PutItem on {TABLE}: the role's permissions boundary"),
        ("wrong", "PushRole may not s3:ListBucket on arn:aws:s3:::prod-lake: an explicit deny"),
    ]


def test_an_unresolvable_permission_is_reported_as_unchecked() -> None:
    diagnoses = permissions_state(3, [], ["Role: Fn::ImportValue"])
    assert [diagnosis.verdict for diagnosis in diagnoses] == [Verdict.WELL, Verdict.UNCHECKED]
    denied = Denied("Role", "a:B", "arn", "no policy allows it")
    [only] = permissions_state(3, [denied], [])
    assert only.verdict is Verdict.WRONG


SECRET_ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod-a1b2"
PARAMETERS = {name: str(item.get("Default", "")) for name, item in template()["Parameters"].items()}
STREAM_ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/prod-BufferTable/stream/1"
LOGICAL = (
    {name: f"prod-{name}" for name in template()["Resources"]}
    | {
        f"{name}.Alias": f"arn:aws:lambda:eu-west-1:123456789012:function:prod-{name}:live"
        for name in functions()
    }
    | {
        name: f"arn:aws:states:eu-west-1:123456789012:stateMachine:prod-{name}"
        for name, each in template()["Resources"].items()
        if each["Type"] == "AWS::Serverless::StateMachine"
    }
)


TRANSFORMED = template() | {
    "Resources": {
        name: item | {"Type": item["Type"].replace("AWS::Serverless::F", "AWS::Lambda::F")}
        for name, item in template()["Resources"].items()
    }
}


def names(**parameters: str) -> Names:
    return Names(
        template=TRANSFORMED,
        parameters=PARAMETERS | parameters,
        resources=LOGICAL,
        outputs={name: f"output-{name}" for name in template()["Outputs"]}
        | {"JwtSecretArn": SECRET_ARN, "BufferStreamArn": STREAM_ARN},
        partition="aws",
        region="eu-west-1",
        account="123456789012",
        stack="prod",
    )


@pytest.mark.parametrize(("owner", "statement"), list(statements()))
def test_every_policy_statement_of_the_template_resolves(
    owner: str, statement: dict[str, Any]
) -> None:
    for need in needs_of(names(), owner, statement):
        assert need.actions
        assert need.resource == "*" or need.resource.startswith("arn:aws:"), owner
        assert "${" not in need.resource
        assert not [value for _, _, value in need.context if "*" in value or "${" in value]


def test_action_target_permissions_are_checked_when_targets_are_configured() -> None:
    policies = template()["Resources"]["ActionsFunction"]["Properties"]["Policies"][-1]["Statement"]
    statement = policies[-1]
    targets = (
        "arn:aws:sqs:eu-west-1:123456789012:a,arn:aws:events:eu-west-1:123456789012:event-bus/b"
    )

    assert list(needs_of(names(), "ActionsFunction", statement)) == []
    given = needs_of(names(ActionTargets=targets), "ActionsFunction", statement)
    assert [need.resource for need in given] == targets.split(",")


def test_permissions_are_checked_on_the_buffer_table_in_use() -> None:
    [resource] = {
        json.dumps(statement["Resource"]): statement["Resource"]
        for owner, statement in statements()
        if owner == "PushFunction" and "dynamodb:GetItem" in statement["Action"]
    }.values()
    start = "arn:aws:dynamodb:eu-west-1:123456789012:table/"
    assert names().value(resource) == f"{start}prod-BufferTable"
    assert names(BufferTableName="restored").value(resource) == f"{start}restored"


@pytest.mark.parametrize(
    ("node", "value"),
    [
        ({"Fn::Sub": "${!Literal}-${AWS::StackName}"}, "${Literal}-prod"),
        ({"Fn::Sub": ["${Own}-${FlushQueue.Arn}", {"Own": {"Ref": "Stage"}}]},
         "prod-arn:aws:sqs:eu-west-1:123456789012:prod-FlushQueue"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::Region"}]]}, "a-eu-west-1"),
        ({"Fn::GetAtt": "JwtSecret.Id"}, SECRET_ARN),
        ({"Fn::If": ["OwnBuffer", "own", "other"]}, "own"),
        ({"a": [{"Ref": "Stage"}]}, {"a": ["prod"]}),
    ],
)  # fmt: skip
def test_cloudformation_intrinsic_functions_are_resolved(node: Any, value: Any) -> None:
    assert names().value(node) == value


@pytest.mark.parametrize(
    "node",
    [{"Ref": "Nobody"}, {"Fn::ImportValue": "x"}, {"Fn::GetAtt": ["HttpApi", "Endpoint"]}],
)
def test_values_known_only_to_cloudformation_are_unresolved(node: Any) -> None:
    with pytest.raises(Unresolved):
        names().value(node)


def test_a_role_absent_from_the_stack_needs_no_permissions() -> None:
    known = names()
    some = {name: physical for name, physical in LOGICAL.items() if name != "MaterialiseJobRole"}
    without = Names(**{**known.__dict__, "resources": some})
    assert "MaterialiseJobRole" in {need.role for need in needed(known)[0]}
    assert "MaterialiseJobRole" not in {need.role for need in needed(without)[0]}


# --- quotas, alarms, schedules --------------------------------------------------------------------


def quota(name: str, value: float) -> dict[str, Any]:
    return {"Quotas": [{"QuotaName": name, "Value": value}]}


def test_a_quota_falls_back_to_the_aws_default_and_is_else_unchecked(
    account: Account,
) -> None:
    subject = Deployed(account)
    subject.__dict__["stack"] = {
        "Parameters": [
            {"ParameterKey": "RequestRates", "ParameterValue": "5000,14900,100,1000,2000"},
        ]
    }
    account.answers("service-quotas", "list_service_quotas", {"Quotas": []})
    account.answers(
        "service-quotas", "list_aws_default_service_quotas", quota("Throttle rate", 10_000)
    )
    account.answers("service-quotas", "list_service_quotas", quota("Something else", 1))
    account.answers("service-quotas", "list_aws_default_service_quotas", {"Quotas": []})
    assert findings(check_service_quotas(subject)) == [
        ("wrong", "apigateway: Throttle rate: 10,000, and 20,000 may be needed"),
        ("unchecked", "glue: Max concurrent job runs per account: AWS gives no value"),
    ]


def test_concurrency_reserved_by_the_stack_counts_as_available(account: Account) -> None:
    subject = Deployed(account)
    subject.__dict__["stack"] = {"Parameters": [{"ParameterKey": "Concurrency",
                                                 "ParameterValue": "600,0,0,0,10"}]}  # fmt: skip
    limit = {"ConcurrentExecutions": 1_000, "UnreservedConcurrentExecutions": 400}
    account.answers("lambda", "get_account_settings", {"AccountLimit": limit})
    account.answers("dynamodb", "describe_limits", {"TableMaxWriteCapacityUnits": 1_000})
    first, second = check_quotas(subject)
    assert first.what.startswith("Lambda: concurrent executions: 1,000, and ")
    assert (first.verdict, second.verdict) == (Verdict.WELL, Verdict.WRONG)


@pytest.mark.parametrize(("stage", "verdict"), [("local", "note"), ("prod", "wrong")])
def test_insufficient_quotas_are_faults_except_on_the_local_stage(
    account: Account, stage: str, verdict: str
) -> None:
    subject = Deployed(account)
    at_stage(subject, stage)
    limit = {"ConcurrentExecutions": 20, "UnreservedConcurrentExecutions": 20}
    account.answers("lambda", "get_account_settings", {"AccountLimit": limit})
    account.answers("dynamodb", "describe_limits", {"TableMaxWriteCapacityUnits": 40_000})
    first, second = check_quotas(subject)

    assert (str(first.verdict), str(second.verdict)) == (verdict, "well")
    if stage == "local":
        assert "the stage local has no account of AWS" in first.what
        [unasked] = check_service_quotas(subject)
        assert (unasked.verdict, exit_code([first, second, unasked])) == (Verdict.NOTE, EXIT_WELL)


@pytest.mark.parametrize(("stage", "verdict"), [("local", "note"), ("prod", "wrong")])
def test_alarms_without_a_subscriber_are_faults_except_on_the_local_stage(
    account: Account, stage: str, verdict: str
) -> None:
    subject = deployed(
        account,
        [("One", "AWS::CloudWatch::Alarm", "one"), ("Other", "AWS::CloudWatch::Alarm", "other")],
    )
    at_stage(subject, stage)
    usual = {"StateValue": "OK", "ActionsEnabled": True, "AlarmActions": [TOPIC]}
    rings = usual | {"AlarmName": "other", "StateValue": "ALARM"}
    alarms = {"MetricAlarms": [usual | {"AlarmName": "one"}, rings]}
    account.answers("cloudwatch", "describe_alarms", alarms)
    account.answers("sns", "list_subscriptions_by_topic", {"Subscriptions": []})
    account.answers("sns", "get_topic_attributes", {"Attributes": {}})
    ringing, unheard = check_alarms(subject)

    assert (str(ringing.verdict), str(unheard.verdict)) == ("wrong", verdict)


def test_doctor_knows_the_shapes_of_the_templates_rates_and_concurrency() -> None:
    parameters = template()["Parameters"]

    assert parameters["RequestRates"]["Default"].split(",")[: len(RATES)] == [*map(str, RATES)]
    assert len(parameters["Concurrency"]["Default"].split(",")) == RESERVED + 1


def test_all_pages_of_alarms_are_checked(account: Account) -> None:
    names = [f"alarm-{number:03d}" for number in range(130)]
    subject = deployed(account, [(name, "AWS::CloudWatch::Alarm", name) for name in names])
    usual = {"StateValue": "OK", "ActionsEnabled": True, "AlarmActions": [TOPIC]}
    alarms = [{"AlarmName": name} | usual for name in names]
    for part, token in ((alarms[:50], "more"), (alarms[50:100], ""), (alarms[100:], "")):
        answer = {"MetricAlarms": part} | ({"NextToken": token} if token else {})
        account.answers("cloudwatch", "describe_alarms", answer)
    account.answers(
        "sns",
        "list_subscriptions_by_topic",
        {"Subscriptions": [{"SubscriptionArn": f"{TOPIC}:1", "TopicArn": TOPIC}]},
    )
    account.answers("sns", "get_topic_attributes", {"Attributes": {}})
    assert findings(check_alarms(subject)) == [
        ("well", "130 alarms there, none rings"),
        ("well", f"1 subscriber of {TOPIC}"),
    ]


def test_an_unconfirmed_subscription_is_no_subscriber(account: Account) -> None:
    subject = deployed(account, [("Backpressure", "AWS::CloudWatch::Alarm", "prod-Backpressure")])
    alarm = {"AlarmName": "prod-Backpressure", "StateValue": "OK", "ActionsEnabled": True,
             "AlarmActions": [TOPIC]}  # fmt: skip
    account.answers("cloudwatch", "describe_alarms", {"MetricAlarms": [alarm]})
    pending = {"Subscriptions": [{"SubscriptionArn": "PendingConfirmation", "TopicArn": TOPIC}]}
    account.answers("sns", "list_subscriptions_by_topic", pending)
    account.answers("sns", "get_topic_attributes", {"Attributes": {}})
    assert findings(check_alarms(subject)) == [
        ("well", "1 alarm there, none rings"),
        ("wrong", f"nobody has confirmed a subscription to {TOPIC}"),
    ]


@pytest.mark.parametrize(
    ("minutes_ago", "status", "stage", "verdict"),
    [
        (20, "SUCCEEDED", "prod", "well"),
        (20, "FAILED", "prod", "wrong"),
        (300, "SUCCEEDED", "prod", "wrong"),
        (300, "SUCCEEDED", "local", "note"),
        (300, "FAILED", "local", "wrong"),
    ],
)
def test_a_state_machines_schedule_is_judged_by_its_executions(
    account: Account, minutes_ago: int, status: str, stage: str, verdict: str
) -> None:
    now_s = datetime.now(UTC).timestamp()
    subject = deployed(
        account,
        [("SweepSchedule", "AWS::Scheduler::Schedule", "sweep"),
         ("Schedules", "AWS::Scheduler::ScheduleGroup", "prod-group")],
    )  # fmt: skip
    at_stage(subject, stage)
    account.answers(
        "scheduler",
        "get_schedule",
        {"State": "ENABLED", "ScheduleExpression": "rate(30 minutes)",
         "CreationDate": datetime(2026, 1, 1, tzinfo=UTC),
         "Target": {"Arn": MACHINE, "RoleArn": ROLE}},
        {"Name": "sweep", "GroupName": "prod-group"},
    )  # fmt: skip
    execution = {
        "executionArn": "e",
        "stateMachineArn": MACHINE,
        "name": "n",
        "status": status,
        "startDate": datetime.fromtimestamp(now_s - 60 * minutes_ago, UTC),
    }
    account.answers("stepfunctions", "list_executions", {"executions": [execution]})
    [diagnosis] = check_schedules(subject)
    assert str(diagnosis.verdict) == verdict


@pytest.mark.parametrize(
    ("invoked", "verdict"),
    [([{"Sum": 2.0, "Timestamp": datetime(2026, 11, 1, tzinfo=UTC)}], "well"), ([], "wrong")],
)
def test_a_functions_schedule_is_judged_by_its_invocations(
    account: Account, invoked: list[Any], verdict: str
) -> None:
    subject = deployed(account, [("FlushSchedule", "AWS::Scheduler::Schedule", "flush")])
    arn = "arn:aws:lambda:eu-west-1:123456789012:function:prod-Schedule:live"
    account.answers(
        "scheduler",
        "get_schedule",
        {"State": "ENABLED", "ScheduleExpression": "rate(15 minutes)",
         "CreationDate": datetime(2026, 1, 1, tzinfo=UTC), "Target": {"Arn": arn, "RoleArn": ROLE}},
        {"Name": "flush", "GroupName": "default"},
    )  # fmt: skip
    asked = {
        "Namespace": "AWS/Lambda",
        "MetricName": "Invocations",
        "Dimensions": [{"Name": "FunctionName", "Value": "prod-Schedule"}],
        "StartTime": ANY,
        "EndTime": ANY,
        "Period": 300,
        "Statistics": ["Sum"],
    }
    account.answers("cloudwatch", "get_metric_statistics", {"Datapoints": invoked}, asked)
    [diagnosis] = check_schedules(subject)
    assert str(diagnosis.verdict) == verdict


# --- what may not be asked ------------------------------------------------------------------------


def test_a_check_without_permission_is_unchecked_and_the_others_run(account: Account) -> None:
    account.refuses("service-quotas", "list_service_quotas", "AccessDeniedException")
    subject = Deployed(account)
    subject.__dict__["stack"] = {}
    every = {"service-quotas": check_service_quotas, "bucket": lambda _: [well("versions")]}
    (first, [refused]), (second, [fine]) = checks.examine(every, subject)
    assert (first, second) == ("service-quotas", "bucket")
    assert refused.verdict is Verdict.UNCHECKED
    assert refused.what.startswith("AWS does not allow ListServiceQuotas to these credentials")
    assert "let these credentials ask" in refused.do
    assert fine.verdict is Verdict.WELL


def test_a_crashing_check_is_unchecked_and_the_others_run(account: Account) -> None:
    def broken(_: Deployed) -> list[Diagnosis]:
        raise ZeroDivisionError

    every: dict[str, Any] = {"one": broken, "two": lambda _: well("fine")}
    (_, [bug]), (_, [fine]) = checks.examine(every, Deployed(account))
    assert (bug.verdict, fine.verdict) == (Verdict.UNCHECKED, Verdict.WELL)
    assert "a bug in lakesync (ZeroDivisionError)" in bug.what


def test_no_other_check_runs_when_the_stack_is_unreadable(account: Account) -> None:
    account.refuses("cloudformation", "describe_stacks", "AccessDenied")
    [(name, [only])] = checks.examine(checks.CHECKS, Deployed(account))
    assert name == "stack"
    assert only.verdict is Verdict.UNCHECKED
    assert "AWS does not allow DescribeStacks" in only.what


def test_doctor_without_a_stack_name_is_unchecked_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith("LAKESYNC_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    done = run("doctor", "--json")
    assert done.exit_code == 2
    [line] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (line["check"], line["verdict"]) == ("stack", "unchecked")
    assert line["what"].startswith("this needs the stack: pass --stack NAME")
