"""The doctor and the smoke test on the deployed stack, as an operator runs them.

Other tests leave dead letters, failed runs and stopped executions behind: what is looked at here is
what they leave alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.cli.doctor.checks import CHECKS
from lakesync.cli.smoke import SCRATCH
from tests.support.deployed import reconfigure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.analysis.connection import Aws

OF_OTHERS = ("buffer", "lake", "destinations", "connectors", "queues")
"""What looks at the gateways of all tests: one may be deleted meanwhile, or there are too many."""
WELL = ("stack", "gateway", "clock", "functions", "permissions", "restore", "bucket")


@pytest.fixture
def listener(aws: Aws) -> Iterator[None]:
    """Somebody hears the alarms."""
    client, topic = aws.client("sns"), aws.output("AlarmTopicArn")
    queue = "arn:aws:sqs:us-east-1:000000000000:somebody"
    arn = client.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)["SubscriptionArn"]
    yield
    client.unsubscribe(SubscriptionArn=arn)


def doctor(stack_folder: Path, *words: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Run it; returns how it ended, and what each check said."""
    where = ["--json", "--stack-file", str(stack_folder / "stack.json")]
    done = CliRunner().invoke(app, ["doctor", *where, *words])
    findings = defaultdict(list)
    for line in map(json.loads, done.stdout.splitlines()):
        findings[line["check"]].append(line)
    return done.exit_code, findings


def others_than(name: str) -> list[str]:
    """Return the options that leave out every check but one, and the stack's."""
    left = [each for each in CHECKS if each not in {"stack", name}]
    return [word for each in left for word in ("--skip", each)]


def physical(aws: Aws, logical: str) -> str:
    client = aws.client("cloudformation")
    answer = client.describe_stack_resource(StackName=aws.stack, LogicalResourceId=logical)
    return str(answer["StackResourceDetail"]["PhysicalResourceId"])


@pytest.mark.usefixtures("listener", "credentials")
def test_doctor_finds_no_fault_and_notes_what_the_local_stage_lacks(
    stack_folder: Path,
) -> None:
    code, findings = doctor(stack_folder)

    assert list(findings) == list(CHECKS)
    wrong = {
        name: findings[name] for name in WELL if {x["verdict"] for x in findings[name]} != {"well"}
    }
    assert wrong == {}
    alone = [name for name in findings if name not in OF_OTHERS]
    verdicts = {(name, line["verdict"]) for name in alone for line in findings[name]}
    assert {name for name, verdict in verdicts if verdict == "unchecked"} == set()
    assert {("quotas", "note"), ("service-quotas", "note")} <= verdicts
    assert findings["alarms"][-1]["what"].startswith("1 subscriber of ")
    all_of_it = {line["verdict"] for lines in findings.values() for line in lines}
    assert code == (1 if "wrong" in all_of_it else 2 if "unchecked" in all_of_it else 0)
    others = [word for name in (*OF_OTHERS, "schedules", "alarms") for word in ("--skip", name)]
    assert doctor(stack_folder, *others)[0] == 0


@pytest.mark.usefixtures("credentials")
def test_doctor_notes_alarms_without_subscribers_on_the_local_stage(stack_folder: Path) -> None:
    _, findings = doctor(stack_folder, *others_than("alarms"))

    unheard = findings["alarms"][-1]
    assert unheard["verdict"] == "note"
    assert "nobody has subscribed" in unheard["what"]


@pytest.mark.usefixtures("credentials")
def test_doctor_names_a_stopped_function_and_missing_permissions_with_advice(
    stack_folder: Path, aws: Aws
) -> None:
    functions, roles = aws.client("lambda"), aws.client("iam")
    name, role = physical(aws, "RetainFunction"), physical(aws, "RetainFunctionRole")
    [policy] = roles.list_role_policies(RoleName=role)["PolicyNames"]
    document = roles.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
    functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    roles.delete_role_policy(RoleName=role, PolicyName=policy)
    try:
        code, findings = doctor(stack_folder)
    finally:
        roles.put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=json.dumps(document))
        functions.delete_function_concurrency(FunctionName=name)

    assert code == 1
    [stopped] = findings["functions"]
    assert stopped["what"].startswith("RetainFunction is stopped")
    assert stopped["do"] == f"aws lambda delete-function-concurrency --function-name {name}"
    denied = [line["what"] for line in findings["permissions"] if line["verdict"] == "wrong"]
    assert any("RetainFunctionRole may not dynamodb:DeleteItem" in what for what in denied)
    assert all(what.startswith("RetainFunctionRole ") for what in denied)


@pytest.mark.usefixtures("credentials")
def test_doctor_names_a_function_rolled_back_to_its_previous_version(
    stack_folder: Path, aws: Aws
) -> None:
    """As in docs/upgrade.md § Undoing, after a deployment that changed a setting."""
    client, name = aws.client("lambda"), physical(aws, "OpenFunction")
    variables = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    before = client.get_alias(FunctionName=name, Name="live")["FunctionVersion"]
    others = [word for check in CHECKS if check != "functions" for word in ("--skip", check)]

    def deploy(**more: str) -> None:
        reconfigure(aws, name, Environment={"Variables": variables | more})
        version = client.publish_version(FunctionName=name)["Version"]
        client.update_alias(FunctionName=name, Name="live", FunctionVersion=version)

    try:
        deploy(POWERTOOLS_LOG_LEVEL="DEBUG")
        assert doctor(stack_folder, *others)[0] == 0
        numbers = [
            each["Version"]
            for each in client.list_versions_by_function(FunctionName=name)["Versions"]
        ]
        client.update_alias(FunctionName=name, Name="live", FunctionVersion=numbers[-2])
        code, findings = doctor(stack_folder, *others)
    finally:
        deploy()

    assert numbers[-2] == before
    assert code == 1
    [put_back] = findings["functions"]
    assert put_back["what"] == (
        f"OpenFunction:live runs version {before}, not what was deployed last: other settings"
    )
    assert doctor(stack_folder, *others)[0] == 0


@pytest.mark.usefixtures("credentials")
def test_doctor_refuses_an_unknown_check_by_name(stack_folder: Path) -> None:
    where = ["--stack-file", str(stack_folder / "stack.json")]
    done = CliRunner().invoke(app, ["doctor", *where, "--skip", "everything"])
    assert done.exit_code == 2
    assert "there is no check 'everything': use stack, gateway" in done.stderr


@pytest.mark.usefixtures("credentials")
def test_smoke_test_passes_on_a_scratch_gateway_and_cleans_up(stack_folder: Path, aws: Aws) -> None:
    where = ["--json", "--stack-file", str(stack_folder / "stack.json")]
    done = CliRunner().invoke(app, ["smoke", *where, "--lake"])

    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in steps if not line["well"]] == []
    assert done.exit_code == 0, done.output
    assert [line["step"] for line in steps] == [
        *("rules", "push", "pull", "edit", "flush", "lake", "clean up", "clean up the lake")
    ]
    gateways = aws.buffer(aws.output("BufferTable")).gateways()
    assert [name for name in gateways if name.startswith(SCRATCH)] == []
    databases = aws.client("glue").get_databases()["DatabaseList"]
    assert [base["Name"] for base in databases if "smoke" in base["Name"]] == []
