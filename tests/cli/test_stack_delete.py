"""A whole stack is deleted, with what CloudFormation would leave; on the emulator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from lakesync.cli import removal
from lakesync.materialise.lake_schema import STACK
from tests.support.command_lines import run
from tests.support.emulated_stack import PLAIN_TABLE
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from tools.local_stack.aws_emulator import Emulator

pytestmark = pytest.mark.emulator

TRIAL = "trial"
NEIGHBOUR = "trial-2"
PREFIX = "lakesync_1a2b3c4d"


def template(name: str, prefix: str = PREFIX, **table: Any) -> str:
    """Return a small stack that says of itself what LakeSync's says."""
    outputs = {"BufferTable": {"Ref": "Table"}, "LakeBucket": {"Ref": "Bucket"}}
    return json.dumps(
        {
            "Parameters": {"Stage": {"Type": "String"}},
            "Resources": {
                "Bucket": {
                    "Type": "AWS::S3::Bucket",
                    "Properties": {
                        "BucketName": f"{name}-lake",
                        "VersioningConfiguration": {"Status": "Enabled"},
                    },
                },
                "Table": {"Type": "AWS::DynamoDB::Table", "Properties": PLAIN_TABLE | table},
            },
            "Outputs": {each: {"Value": value} for each, value in outputs.items()}
            | {"DatabasePrefix": {"Value": prefix}},
        }
    )


class Account:
    """The emulator as an account of AWS, and commands that are run on it."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            make: Any = boto3.client
            self._clients[service] = make(service, **self._emulator.client_options())
        return self._clients[service]

    def deploy(self, name: str, stage: str = "ephemeral", body: str = "") -> str:
        """Deploy a stack, and return its id."""
        parameters = [{"ParameterKey": "Stage", "ParameterValue": stage}]
        formation = self.client("cloudformation")
        made = formation.create_stack(
            StackName=name, TemplateBody=body or template(name), Parameters=parameters
        )
        formation.get_waiter("stack_create_complete").wait(
            StackName=name, WaiterConfig={"Delay": 0, "MaxAttempts": 300}
        )
        return str(made["StackId"])

    def use(self, name: str, stack_id: str) -> None:
        """Leave behind what the product leaves: versions, secrets, lake tables, a job's logs."""
        s3, glue = self.client("s3"), self.client("glue")
        for _ in range(2):
            s3.put_object(Bucket=f"{name}-lake", Key="staging/a", Body=b"1")
        s3.delete_object(Bucket=f"{name}-lake", Key="staging/a")
        for kind in removal.SECRET_KINDS:
            secret = f"{name}/{kind}/acme/shop"
            self.client("secretsmanager").create_secret(Name=secret, SecretString="x")
        database = f"{PREFIX}_{name.replace('-', '_')}"
        glue.create_database(DatabaseInput={"Name": database})
        place = f"s3://{name}-lake/warehouse/{database}.db/todos"
        for described in (
            {"Name": "todos", "StorageDescriptor": {"Location": place}},
            {"Name": "todos_live", "Parameters": {STACK: stack_id}},
        ):
            glue.create_table(DatabaseName=database, TableInput=described)
        self.client("logs").create_log_group(logGroupName=f"/aws-glue/{name}/output")

    def left(self, name: str) -> list[str]:
        """Return everything there is of a stack."""
        glue, s3 = self.client("glue"), self.client("s3")
        database = f"{PREFIX}_{name.replace('-', '_')}"
        databases = [each["Name"] for each in glue.get_databases()["DatabaseList"]]
        secrets = self.client("secretsmanager").list_secrets()["SecretList"]
        groups = self.client("logs").describe_log_groups()["logGroups"]
        names = [
            *(each["Name"] for each in secrets),
            *(each["logGroupName"].removeprefix("/aws-glue/") for each in groups),
            *(each["Name"].replace("-lake", "/lake") for each in s3.list_buckets()["Buckets"]),
        ]
        return [
            *sorted(each for each in names if each.startswith(f"{name}/")),
            *(each for each in databases if each == database),
        ]

    def run(self, *words: str) -> Result:
        return run("stack", "delete", *words)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with start_emulator() as started:
        yield started


@pytest.fixture(scope="module")
def everyones(emulator: Emulator) -> Account:
    return Account(emulator)


@pytest.fixture
def account(
    everyones: Account, emulator: Emulator, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Account:
    assert empty_folder.is_dir()
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(removal, "_POLL_S", 0)
    return everyones


def test_deleting_a_stack_removes_its_resources_and_leaves_other_stacks_untouched(
    account: Account,
) -> None:
    for name in (TRIAL, NEIGHBOUR):
        account.use(name, account.deploy(name))
    everything = account.left(TRIAL), account.left(NEIGHBOUR)
    assert len(everything[0]) == 6

    shown = account.run(TRIAL, "--json")
    assert shown.exit_code == 0, shown.output
    assert "nothing was deleted" in shown.stderr
    listed = json.loads(shown.stdout)
    assert listed["tables"] == [f"{PREFIX}_trial.todos", f"{PREFIX}_trial.todos_live"]
    assert len(listed["secrets"]) == 3
    assert listed["buckets"] == ["trial-lake"]
    assert any("trial_2.todos" in each for each in listed["kept"]), "the neighbour's, same prefix"
    assert (account.left(TRIAL), account.left(NEIGHBOUR)) == everything

    assert account.run(TRIAL, "--yes", "trail").exit_code == 2
    deleted = account.run(TRIAL, "--yes", TRIAL)
    assert deleted.exit_code == 0, deleted.output
    assert account.left(TRIAL) == []
    assert account.left(NEIGHBOUR) == everything[1]

    again = account.run(TRIAL, "--yes", TRIAL)
    assert again.exit_code == 1
    assert "there is no stack trial in" in again.stderr
    assert account.run(NEIGHBOUR, "--yes", NEIGHBOUR).exit_code == 0


def test_an_interrupted_stack_deletion_is_completed_by_repeating_the_command(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "broken"
    account.use(name, account.deploy(name))
    for operation in ("delete_secret", "delete_table", "delete_log_group", "delete_objects"):
        with monkeypatch.context() as patch:
            patch.setattr("botocore.client.BaseClient._make_api_call", breaking(operation))
            assert account.run(name, "--yes", name).exit_code == 130
        assert account.left(name)
    assert account.run(name, "--yes", name).exit_code == 0
    assert account.left(name) == []


def breaking(operation: str) -> Any:
    """Return a call of AWS that is carried out, and interrupted then if it is this operation."""
    ordinary: Any = BaseClient.__dict__["_make_api_call"]
    wanted = operation.replace("_", "")

    def call(self: Any, name: str, arguments: Any) -> Any:
        answer = ordinary(self, name, arguments)
        if name.lower() == wanted:
            raise KeyboardInterrupt
        return answer

    return call


@pytest.mark.parametrize(
    ("stage", "table", "advice"),
    [
        ("prod", {}, "Stage=ephemeral"),
        ("ephemeral", {"DeletionProtectionEnabled": True}, "--no-deletion-protection-enabled"),
    ],
)
def test_deletion_of_a_stack_with_protected_data_is_refused_with_advice(
    account: Account, stage: str, table: dict[str, Any], advice: str
) -> None:
    name = f"kept-{stage}"
    account.use(name, account.deploy(name, stage, template(name, **table)))
    everything = account.left(name)
    refused = account.run(name, "--yes", name)
    assert refused.exit_code == 1
    assert advice in refused.stderr
    assert account.left(name) == everything


def test_deletion_of_a_stack_with_termination_protection_is_refused_with_advice(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CloudFormation would refuse the deletion itself, once everything around it is gone."""
    name = "ended"
    account.use(name, account.deploy(name))
    everything = account.left(name)
    ordinary = removal.StackRemoval._described
    protected = {"EnableTerminationProtection": True}
    monkeypatch.setattr(removal.StackRemoval, "_described", lambda self: ordinary(self) | protected)
    refused = account.run(name, "--yes", name)
    assert refused.exit_code == 1
    assert "--no-enable-termination-protection" in refused.stderr
    assert account.left(name) == everything


def test_a_rolled_back_first_deployment_may_be_deleted_on_any_stage(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no other deployment, so that nothing could lift its protection; it has no data."""
    account.deploy("half", "prod")
    ordinary = removal.StackRemoval._described

    def rolled_back(self: Any) -> dict[str, Any]:
        return ordinary(self) | {"StackStatus": "ROLLBACK_COMPLETE"}

    monkeypatch.setattr(removal.StackRemoval, "_described", rolled_back)
    shown = account.run("half")
    assert (shown.exit_code, "bucket half-lake" in shown.stdout) == (0, True)
    monkeypatch.undo()
    assert account.client("s3").head_bucket(Bucket="half-lake")


def test_deletion_of_a_foreign_stack_is_refused(account: Account) -> None:
    body = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket"}}}
    account.deploy("shop", body=json.dumps(body | {"Parameters": {"Stage": {"Type": "String"}}}))
    refused = account.run("shop", "--yes", "shop")
    assert refused.exit_code == 2
    assert "is not LakeSync's" in refused.stderr


def test_a_bucket_written_to_during_deletion_is_emptied_again(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions work until they are deleted; CloudFormation then refuses the bucket."""
    name = "busy"
    account.use(name, account.deploy(name))
    failures = iter([[("AWS::S3::Bucket", "Bucket (not empty)")]])
    ordinary = removal.StackRemoval._delete_stack

    def once_refused(self: Any) -> list[tuple[str, str]]:
        for failure in failures:
            account.client("s3").put_object(Bucket=f"{name}-lake", Key="late", Body=b"1")
            return failure
        listed = account.client("s3").list_object_versions(Bucket=f"{name}-lake")
        assert not listed.get("Versions"), "emptied again"
        return ordinary(self)

    monkeypatch.setattr(removal.StackRemoval, "_delete_stack", once_refused)
    assert account.run(name, "--yes", name).exit_code == 0
    with pytest.raises(ClientError):
        account.client("cloudformation").describe_stacks(StackName=name)


def test_resources_that_cloudformation_cannot_delete_are_named(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.deploy("stuck")
    failure = [("AWS::Lambda::Function", "PushFunction (its network interfaces are in use)")]
    monkeypatch.setattr(removal.StackRemoval, "_delete_stack", lambda _self: failure)
    stuck = account.run("stuck", "--yes", "stuck")
    assert stuck.exit_code == 3
    assert "PushFunction (its network interfaces are in use)" in stuck.stderr
