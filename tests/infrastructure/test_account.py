"""What an account asks of the template and no emulator does: names, protection, transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli.cost import counts
from lakesync.core.deliveries import CLAIMS, DELIVERIES
from tests.infrastructure.stack import (
    as_list,
    folder_of,
    functions,
    part,
    refusals,
    resources,
    template,
)
from tests.infrastructure.transformed import made, transformed
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator

# Properties that fix a physical name.
NAMES = {
    "AWS::ApiGatewayV2::Api": "Name",
    "AWS::CloudWatch::Alarm": "AlarmName",
    "AWS::CloudWatch::Dashboard": "DashboardName",
    "AWS::DynamoDB::Table": "TableName",
    "AWS::Events::Rule": "Name",
    "AWS::Glue::Job": "Name",
    "AWS::IAM::Role": "RoleName",
    "AWS::Lambda::Function": "FunctionName",
    "AWS::Logs::LogGroup": "LogGroupName",
    "AWS::S3::Bucket": "BucketName",
    "AWS::SNS::Topic": "TopicName",
    "AWS::SQS::Queue": "QueueName",
    "AWS::Scheduler::Schedule": "Name",
    "AWS::Scheduler::ScheduleGroup": "Name",
    "AWS::SecretsManager::Secret": "Name",
    "AWS::StepFunctions::StateMachine": "StateMachineName",
}
# What holds what cannot be made again.
DATA = ("BufferTable", "LakeBucket", "JwtSecret")


# --- two stacks in one account --------------------------------------------------------------------


def test_explicit_resource_names_contain_the_stack_name() -> None:
    given = {
        name: resource.get("Properties", {}).get(NAMES.get(resource["Type"], ""))
        for name, resource in transformed()["Resources"].items()
    }
    named = {name: text for name, text in given.items() if text is not None}
    for name, text in some(named.items()):
        assert "${AWS::StackName}" in str(text), f"{name}: {text}"


# Names that are of another resource of the same stack, of a domain that only one stack is given, or
# of versions, which are numbered.
WITHIN = {
    "AWS::ApiGatewayV2::Authorizer", "AWS::ApiGatewayV2::Stage", "AWS::IAM::Policy",
    "AWS::Lambda::Alias", "AWS::Lambda::LayerVersion", "AWS::Route53::RecordSet",
}  # fmt: skip


def physical_names(stack: str) -> set[str]:
    """Return every name that the template gives to a resource of a stack of this name."""
    names = set()
    for resource in transformed()["Resources"].values():
        kind, properties = resource["Type"], resource.get("Properties", {})
        given = {"Name", NAMES.get(kind, "Name"), f"{kind.rpartition(':')[2]}Name"} - {"DomainName"}
        for each in given & set(properties) if kind not in WITHIN else ():
            names.add(f"{kind} {properties[each]}".replace("${AWS::StackName}", stack))
    return names


def test_two_stacks_share_no_physical_names() -> None:
    first, second = physical_names("one"), physical_names("two")
    assert first
    assert first & second == set()


def test_every_schedule_is_in_the_schedule_group_of_the_stack() -> None:
    schedules = made("AWS::Scheduler::Schedule")

    assert len(schedules) == 8
    assert all(each["GroupName"] == {"Ref": "Schedules"} for each in schedules.values())


def test_default_database_prefix_is_derived_from_the_stack_id() -> None:
    prefix = template()["Parameters"]["DatabasePrefix"]
    databases = resources("AWS::SSM::Parameter")["Databases"]["Properties"]["Value"]

    assert prefix["Default"] == ""
    assert databases["Fn::If"][:2] == ["HasDatabasePrefix", {"Ref": "DatabasePrefix"}]
    assert "AWS::StackId" in str(databases["Fn::If"][2])
    assert template()["Outputs"]["DatabasePrefix"]["Value"] == {
        "Fn::GetAtt": ["Databases", "Value"]
    }


def test_lake_jobs_are_given_the_database_prefix_and_the_stack_id() -> None:
    jobs = resources("AWS::Glue::Job")
    for name in some(jobs.keys() - {"BigQueryJob", "FlowJob"}):
        job = jobs[name]
        arguments = job["Properties"]["DefaultArguments"]
        assert arguments["--database_prefix"] == {"Fn::GetAtt": ["Databases", "Value"]}, name
        assert arguments["--stack"] == {"Ref": "AWS::StackId"}, name


# --- protection -----------------------------------------------------------------------------------


def test_default_stage_retains_data() -> None:
    assert template()["Parameters"]["Stage"]["Default"] == "prod"
    assert template()["Conditions"]["IsProtected"] == {"Fn::Equals": [{"Ref": "Stage"}, "prod"]}


@pytest.mark.parametrize("name", DATA)
def test_stack_deletion_retains_data_unless_the_stage_is_unprotected(name: str) -> None:
    resource = template()["Resources"][name]
    condition, protected, otherwise = resource["DeletionPolicy"]["Fn::If"]

    assert (condition, otherwise) == ("IsProtected", "Delete")
    assert protected in {"Retain", "RetainExceptOnCreate"}
    assert resource["UpdateReplacePolicy"] == {"Fn::If": ["IsProtected", "Retain", "Delete"]}


def test_buffer_table_has_deletion_protection_and_point_in_time_recovery() -> None:
    table = resources("AWS::DynamoDB::Table")["BufferTable"]["Properties"]

    assert table["DeletionProtectionEnabled"] == {"Fn::If": ["IsProtected", True, False]}
    assert table["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True


def test_noncurrent_object_versions_are_kept_and_expire() -> None:
    bucket = resources("AWS::S3::Bucket")["LakeBucket"]["Properties"]
    rules: list[dict[str, Any]] = bucket["LifecycleConfiguration"]["Rules"]
    everywhere = [
        rule for rule in rules if "Prefix" not in rule and "NoncurrentVersionExpiration" in rule
    ]

    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert [rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in everywhere] == [
        part(1, "LakeKeepDays")
    ]
    assert everywhere[0]["ExpiredObjectDeleteMarker"] is True


@pytest.mark.parametrize("prefix", [CLAIMS, DELIVERIES])
def test_versions_of_removed_claims_expire_after_one_day(prefix: str) -> None:
    """What a listing reads past; S3 honours the shorter of two rules.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-conflicts.html
    """
    bucket = transformed()["Resources"]["LakeBucket"]["Properties"]
    [rule] = [
        rule for rule in bucket["LifecycleConfiguration"]["Rules"] if rule.get("Prefix") == prefix
    ]

    assert rule["Status"] == "Enabled"
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}
    # S3 accepts this only without an expiration in days.
    assert rule["ExpiredObjectDeleteMarker"] is True
    assert "ExpirationInDays" not in rule


@pytest.mark.law("E7")
def test_abandoned_erasure_requests_expire_after_seven_days() -> None:
    bucket = resources("AWS::S3::Bucket")["LakeBucket"]["Properties"]
    [rule] = [
        rule
        for rule in bucket["LifecycleConfiguration"]["Rules"]
        if rule.get("Prefix") == "maintenance/"
    ]

    assert rule["ExpirationInDays"] == 7
    assert rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 1}


# --- transport and encryption ---------------------------------------------------------------------


def _refuses_plain_transport(policy: dict[str, Any]) -> bool:
    return any(
        statement["Effect"] == "Deny"
        and statement["Principal"] == "*"
        and statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        for statement in policy["PolicyDocument"]["Statement"]
    )


def test_queues_and_bucket_refuse_unencrypted_transport() -> None:
    queues = {
        queue["Ref"]: _refuses_plain_transport(policy["Properties"])
        for policy in resources("AWS::SQS::QueuePolicy").values()
        for queue in policy["Properties"]["Queues"]
    }
    bucket = resources("AWS::S3::BucketPolicy")["LakeBucketPolicy"]["Properties"]

    assert queues == dict.fromkeys(resources("AWS::SQS::Queue"), True)
    assert _refuses_plain_transport(bucket)


def test_queues_table_bucket_and_alarm_topic_are_encrypted() -> None:
    for name, queue in resources("AWS::SQS::Queue").items():
        assert queue["Properties"]["SqsManagedSseEnabled"] is True, name
    table = resources("AWS::DynamoDB::Table")["BufferTable"]["Properties"]
    topic = resources("AWS::SNS::Topic")["AlarmTopic"]["Properties"]

    assert table["SSESpecification"] == {"SSEEnabled": True}
    # Alarms hold no data, and a key costs more than ten of them: only where that is asked for.
    assert topic["KmsMasterKeyId"]["Fn::If"][:2] == [
        "EncryptsAlarms", {"Fn::GetAtt": ["AlarmKey", "Arn"]}
    ]  # fmt: skip
    assert "BucketEncryption" in resources("AWS::S3::Bucket")["LakeBucket"]["Properties"]


# --- functions ------------------------------------------------------------------------------------


def test_every_function_defaults_to_arm64_and_logs_json() -> None:
    assert template()["Parameters"]["Architecture"]["Default"] == "arm64"
    for name, function in made("AWS::Lambda::Function").items():
        logging = function["LoggingConfig"]
        assert logging["LogGroup"]["Ref"] in resources("AWS::Logs::LogGroup"), name
        assert (logging["LogFormat"], logging["ApplicationLogLevel"]) == ("JSON", "INFO")
        assert function["Architectures"] == [{"Ref": "Architecture"}]


def test_exactly_the_functions_that_sample_their_reports_turn_off_those_of_lambda() -> None:
    """An operator sizes memory by it; `lakesync cost` counts the lines."""
    sampled = {
        folder_of(properties)
        for properties in functions().values()
        if "= sized(" in (ROOT / properties["CodeUri"] / "app.py").read_text()
    }
    levels = {
        function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]: function["LoggingConfig"][
            "SystemLogLevel"
        ]
        for function in made("AWS::Lambda::Function").values()
    }

    assert {name for name, level in levels.items() if level == "WARN"} == sampled
    assert set(levels.values()) == {"INFO", "WARN"}
    assert sampled == counts.SAMPLED


def test_python_3_11_is_accepted_only_on_the_local_stage() -> None:
    old = {"PythonRuntime": "python3.11"}

    assert refusals({}) == []
    assert "python3.12" in "".join(refusals(old))
    assert refusals(old | {"Stage": "local"}) == []


def test_traces_are_conditional_and_every_traced_role_may_write_them() -> None:
    """SAM adds the right to a function whose mode is the literal word alone."""
    tracing = {"Fn::If": ["Traces", "Active", "PassThrough"]}
    right = {
        "Fn::If": [
            "Traces",
            {"Fn::Sub": "arn:${AWS::Partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"},
            {"Ref": "AWS::NoValue"},
        ]
    }
    roles = made("AWS::IAM::Role")
    for name, function in made("AWS::Lambda::Function").items():
        assert function["TracingConfig"] == {"Mode": tracing}, name
        assert right in roles[function["Role"]["Fn::GetAtt"][0]]["ManagedPolicyArns"], name
    for name, machine in made("AWS::StepFunctions::StateMachine").items():
        assert machine["TracingConfiguration"] == {"Enabled": {"Fn::If": ["Traces", True, False]}}
        assert right in roles[machine["RoleArn"]["Fn::GetAtt"][0]]["ManagedPolicyArns"], name


# --- Lake Formation -------------------------------------------------------------------------------


def test_under_lake_formation_every_lake_job_runs_as_the_role_that_creates_databases() -> None:
    jobs, stack = resources("AWS::Glue::Job"), template()["Resources"]
    maker = {"Fn::GetAtt": ["MaterialiseJobRole", "Arn"]}
    grant = stack["MakesDatabases"]

    assert template()["Parameters"]["LakePermissions"]["Default"] == "iam"
    assert jobs["MaterialiseJob"]["Properties"]["Role"] == maker
    for job in ("CheckpointJob", "MaintainJob"):
        assert jobs[job]["Properties"]["Role"]["Fn::If"][:2] == ["UsesLakeFormation", maker]
    assert grant["Condition"] == "UsesLakeFormation"
    assert grant["Properties"]["Permissions"] == ["CREATE_DATABASE"]
    assert grant["Properties"]["Principal"] == {"DataLakePrincipalIdentifier": maker}


def test_under_lake_formation_exactly_the_readers_of_the_lake_may_get_its_data() -> None:
    stack = template()["Resources"]
    grant = stack["ReadsGovernedData"]
    roles = {role["Ref"] for role in grant["Properties"]["Roles"]}
    reads = {
        name if name.endswith("Role") else f"{name}Role"
        for name, resource in stack.items()
        for statement in statements_in(resource)
        if resource["Type"] in {"AWS::IAM::Role", "AWS::Serverless::Function"}
        and "glue:GetTable" in as_list(statement["Action"])
    }

    assert grant["Condition"] == "UsesLakeFormation"
    assert roles == reads
    assert [
        name
        for name, resource in stack.items()
        for statement in statements_in(resource)
        if "lakeformation:GetDataAccess" in as_list(statement["Action"])
    ] == ["ReadsGovernedData"]


@pytest.mark.law("E7")
def test_only_roles_of_erasure_may_delete_object_versions_and_only_under_copied_prefixes() -> None:
    allowed = {
        name: [str(one) for one in as_list(statement["Resource"])]
        for name, resource in template()["Resources"].items()
        for statement in statements_in(resource)
        if {"s3:DeleteObjectVersion", "s3:*", "*"} & set(as_list(statement["Action"]))
        and statement["Effect"] == "Allow"
    }

    assert set(allowed) == {"MaintainJobRole", "MaterialiserMaintains"}
    for places in some(allowed.values()):
        prefixes = [one.rpartition("LakeBucket.Arn}/")[2].strip("'}\"") for one in places]
        copies = ["warehouse", "checkpoints", "staging", "connectors", "deliveries", "attachments"]
        assert prefixes == [*(f"{kind}/*" for kind in copies), "maintenance/erase-*"]


def statements_in(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every statement of a policy, however deep it lies."""
    if isinstance(part, dict) and "Effect" in part and "Action" in part:
        yield part
    for inner in (
        part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    ):
        yield from statements_in(inner)


@pytest.mark.parametrize(
    ("role", "addition"),
    [
        ("CheckpointJobRole", "MaterialiserMaintains"),
        ("MaintainJobRole", "MaterialiserMaintains"),
    ],
)
def test_under_lake_formation_the_creating_role_has_the_rights_of_every_other_job(
    role: str, addition: str
) -> None:
    stack = template()["Resources"]
    more = stack[addition]
    [own] = stack[role]["Properties"]["Policies"]
    [makers] = stack["MaterialiseJobRole"]["Properties"]["Policies"]

    def allowed(*documents: dict[str, Any]) -> set[tuple[str, str]]:
        return {
            (action, str(resource))
            for document in documents
            for statement in document["Statement"]
            for action in as_list(statement["Action"])
            for resource in as_list(statement["Resource"])
        }

    both = allowed(makers["PolicyDocument"], more["Properties"]["PolicyDocument"])
    assert more["Condition"] == "UsesLakeFormation"
    assert more["Properties"]["Roles"] == [{"Ref": "MaterialiseJobRole"}]
    assert allowed(own["PolicyDocument"]) <= both
