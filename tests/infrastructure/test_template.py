"""The template: least privilege, and nothing that can fail without somebody being told."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import MISSING, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from pyiceberg.catalog.noop import NoopCatalog

from lakesync.adapters.lake.s3 import S3SignedObjects
from lakesync.buffer import item_format
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.buffer.item_format import pack_config
from lakesync.core.clock import VISIBLE_MS_MAX
from lakesync.core.config import GatewayConfig
from lakesync.core.layout import MAIN_LANE
from lakesync.gateway.broadcast import TURN_MS_MAX
from lakesync.gateway.frame_sending import SENT_PER_S_MAX
from lakesync.log.lanes import Limits
from lakesync.maintenance.erasure import OBJECT_KINDS
from lakesync.materialise.lake_catalogue import LakeCatalogue, LakePlace
from lakesync.runtime import settings, websockets
from lakesync.systems.iceberg.iceberg_database import IcebergDatabase
from tests.infrastructure.stack import (
    accepts,
    alarms_on,
    as_list,
    folder_of,
    functions,
    part,
    refusals,
    resources,
    statements,
    template,
)
from tests.infrastructure.transformed import transformed
from tests.support.repository import ROOT
from tests.support.some import some
from tests.support.stores import UNFLUSHED_INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

FUNCTIONS = sorted(functions())
SET_BY_LAMBDA = {"AWS_REGION"}
# What a stack may be without: a listener, the demand for TLS, an address of its own, what Lake
# Formation asks for, a saved query, and the stream of a table that was restored.
WITHOUT = {
    "AWS::ApiGatewayV2::ApiMapping",
    "AWS::ApiGatewayV2::DomainName",
    "AWS::CloudFront::Distribution",
    "AWS::LakeFormation::PrincipalPermissions",
    "AWS::Lambda::EventSourceMapping",
    "AWS::Logs::QueryDefinition",
    "AWS::Route53::RecordSet",
    "AWS::S3::BucketPolicy",
    "AWS::SNS::Subscription",
    "AWS::SQS::QueuePolicy",
    "AWS::WAFv2::WebACL",
}


def test_cfn_lint_reports_nothing(tmp_path: Path) -> None:
    """`sam validate --lint` runs the same linter, and shows less of what that finds."""
    command = Path(sys.executable).with_name("cfn-lint")
    answer = subprocess.run(
        [command, "--non-zero-exit-code", "informational", ROOT / "template.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert answer.returncode == 0, answer.stdout


def test_sam_and_the_tests_use_the_same_cfn_lint_version() -> None:
    locks = [(ROOT / "requirements" / f"{name}.lock").read_text() for name in ("dev", "sam")]
    own, of_sam = [re.findall(r"^cfn-lint==\S+", lock, re.MULTILINE) for lock in locks]
    assert own == of_sam
    assert len(own) == 1


# --- least privilege ------------------------------------------------------------------------------


WITHOUT_RESOURCE = {
    "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery",
    "logs:DeleteLogDelivery", "logs:ListLogDeliveries", "logs:PutResourcePolicy",
    "logs:DescribeResourcePolicies", "logs:DescribeLogGroups",
    "cloudwatch:GetMetricData",
    "dynamodb:ListStreams",
}  # fmt: skip
"""To deliver logs, to read metrics, to list streams: AWS knows no narrower resource."""
GLUE = '{"Fn::Sub": "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:'
CATALOGUE, DATABASES = f'{GLUE}catalog"}}', f'{GLUE}database/*"}}'
"""An account has one catalogue in a region, and all databases are listed at once."""
METRICS = {"Effect": "Allow", "Action": "cloudwatch:GetMetricData", "Resource": "*"}


@pytest.mark.parametrize(("owner", "statement"), list(statements()))
def test_policy_statements_have_no_wildcard_actions_or_resources(
    owner: str, statement: dict[str, Any]
) -> None:
    assert statement["Effect"] == "Allow"
    for action in some(as_list(statement["Action"])):
        service, _, name = action.partition(":")
        assert "*" not in action
        assert name, f"{owner} may do all of {service}"
    for resource in some(as_list(statement["Resource"])):
        if set(as_list(statement["Action"])) <= WITHOUT_RESOURCE:
            continue
        text = json.dumps(resource)
        assert resource != "*"
        # A partition, a region and an account alone would be all resources of the account.
        own = re.sub(r"\$\{AWS::(Partition|Region|AccountId)\}", "", text)
        is_named = '"Ref"' in own or '"Fn::GetAtt"' in own or "${" in own or text == CATALOGUE
        lists = text == DATABASES and as_list(statement["Action"]) == ["glue:GetDatabases"]
        assert is_named or lists, f"{owner}: {text}"


def is_of_buffer(statement: dict[str, Any]) -> bool:
    return "BufferTable" in json.dumps(statement["Resource"])


def test_only_the_listed_roles_may_write_to_the_buffer() -> None:
    writers = {
        owner
        for owner, statement in statements()
        if "dynamodb:PutItem" in as_list(statement["Action"]) and is_of_buffer(statement)
    }

    assert writers == {
        "PushFunction",
        "FramesFunction",
        "AdminFunction",
        "FlushFunction",
        "RetainFunction",
        "IngestFunction",
        "FlowFunction",
        "LakeFlowFunction",
        "WebhookFunction",
        "DeliverFunction",
        "BigQueryJobRole",
        "FlowJobRole",
    }


def test_admin_function_may_not_delete_rows_heads_or_log_entries() -> None:
    connections = {"Fn::GetAtt": ["ConnectionsTable", "Arn"]}
    (statement,) = [
        statement
        for owner, statement in statements()
        if owner == "AdminFunction"
        and "dynamodb:DeleteItem" in as_list(statement["Action"])
        and statement["Resource"] != connections
    ]
    ((_, keys_allowed),) = statement["Condition"]["ForAllValues:StringLike"].items()

    def may_delete(pk: str) -> bool:
        return any(fnmatchcase(pk, pattern) for pattern in keys_allowed)

    assert statement["Action"] == "dynamodb:DeleteItem"
    assert may_delete(item_format.revoked_pk("g1"))
    assert may_delete(item_format.user_pk("g1", "phone|1"))
    assert may_delete(item_format.connector_pk("g1"))
    assert may_delete(item_format.action_pk("g1"))
    for gateway in ("g1", "user", "revoked"):
        assert not may_delete(item_format.config_pk(gateway))
        for name in ("user", "revoked", "|user|", "|revoked|"):
            assert not may_delete(item_format.head_key(gateway, name)[0])
            assert not may_delete(item_format.log_pk(gateway, name))
            assert not may_delete(item_format.client_pk(gateway, name))
            assert not any(may_delete(pk) for pk in item_format.row_pks(gateway, name))
    assert not may_delete(item_format.GATEWAYS)


def test_only_the_listed_roles_may_delete_from_the_buffer() -> None:
    allowed = [
        (name, action)
        for name, statement in statements()
        if is_of_buffer(statement)
        for action in as_list(statement["Action"])
    ]
    deletes = {"dynamodb:DeleteItem", "dynamodb:BatchWriteItem"}
    deleters = {owner for owner, action in allowed if action in deletes}

    assert deleters == {"RetainFunction", "AdminFunction", "DeliverFunction", "BigQueryJobRole"}
    assert not {action for _, action in allowed} & {"dynamodb:DeleteTable"}


def test_only_the_index_of_unflushed_heads_may_be_scanned() -> None:
    [index] = resources("AWS::DynamoDB::Table")["BufferTable"]["Properties"][
        "GlobalSecondaryIndexes"
    ]
    scans = [
        (owner, arn)
        for owner, statement in statements()
        if "dynamodb:Scan" in as_list(statement["Action"]) and is_of_buffer(statement)
        for arn in statement["Resource"]["Fn::If"][1:]
    ]

    assert index == UNFLUSHED_INDEX
    assert [owner for owner, _ in scans] == ["ScheduleFlushFunction"] * 2
    assert all(arn["Fn::Sub"].endswith("/index/unflushed") for _, arn in scans)


def test_flush_scheduler_may_invoke_only_itself() -> None:
    policy = template()["Resources"]["ScheduleFlushGoesOn"]["Properties"]

    assert policy["Roles"] == [{"Ref": "ScheduleFlushFunctionRole"}]
    [statement] = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == "lambda:InvokeFunction"
    assert statement["Resource"] == {"Ref": "ScheduleFlushFunction.Alias"}


def s3_statements(owner: str) -> tuple[dict[str, set[str]], list[str]]:
    """Return what a function may do with the objects of each prefix, and what it may list."""
    actions: dict[str, set[str]] = {}
    listed: list[str] = []
    for name, one in statements():
        if name != owner or "s3:" not in json.dumps(one):
            continue
        if as_list(one["Action"]) == ["s3:ListBucket"]:
            listed += as_list(one["Condition"]["StringLikeIfExists"]["s3:prefix"])
            continue
        for resource in as_list(one["Resource"]):
            prefix = resource["Fn::Sub"].removeprefix("${LakeBucket.Arn}/")
            actions.setdefault(prefix, set()).update(as_list(one["Action"]))
    return actions, listed


def test_roles_that_read_objects_may_list_the_bucket_so_that_a_missing_one_gives_404() -> None:
    """S3 says 404 only to who may list the bucket: a reader of one object names no prefix."""
    lake = {"Fn::GetAtt": ["LakeBucket", "Arn"]}
    readers, listers = set(), set()
    for name, one in statements():
        read = {"s3:GetObject", "s3:GetObject*"} & set(as_list(one["Action"]))
        if read and "${LakeBucket.Arn}" in json.dumps(one["Resource"]):
            readers.add(name)
        lists = "s3:ListBucket" in as_list(one["Action"]) and lake in as_list(one["Resource"])
        if lists and not {"StringLike", "StringEquals"} & set(one.get("Condition", {})):
            listers.add(name)

    assert "PullFunction" in readers
    assert readers <= listers


def test_pull_function_may_read_only_checkpoints_of_the_lake() -> None:
    assert s3_statements("PullFunction") == (
        {"checkpoints/*": {"s3:GetObject"}},
        ["checkpoints/*"],
    )


def test_retention_may_read_only_checkpoints_and_delete_objects_of_every_kind() -> None:
    actions, listed = s3_statements("RetainFunction")
    others = set(OBJECT_KINDS) - {"checkpoints"}

    assert actions.pop("checkpoints/*") == {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}
    assert actions == {f"{kind}/*": {"s3:DeleteObject"} for kind in others}
    assert sorted(listed) == sorted(f"{kind}/*" for kind in OBJECT_KINDS)


def test_jwt_secret_and_destination_secrets_are_readable_only_where_needed() -> None:
    read = {
        owner: statement["Resource"]
        for owner, statement in statements()
        if any(action.startswith("secretsmanager:") for action in as_list(statement["Action"]))
        and "/connectors/*" not in json.dumps(statement["Resource"])
        and owner not in {"ActionsFunction", "FlowFunction", "FlowJobRole", "LakeFlowFunction"}
    }

    delivering = {"DeliverFunction", "PullSourceFunction", "BigQueryJobRole"}
    assert read.keys() == {"AuthoriseFunction", *delivering}
    assert read["AuthoriseFunction"] == {"Fn::GetAtt": ["JwtSecret", "Id"]}
    for owner in some(delivering):
        assert read[owner]["Fn::Sub"].endswith(":secret:${AWS::StackName}/destinations/*")


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("IngestFunction", ["connectors"]),
        ("FlowFunction", ["connectors", "destinations"]),
        ("LakeFlowFunction", ["connectors", "destinations"]),
    ],
)
def test_polling_functions_may_read_only_the_secrets_of_what_they_poll(
    name: str, of: list[str]
) -> None:
    [reads] = [
        as_list(statement["Resource"])
        for owner, statement in statements()
        if owner == name
        and any(action.startswith("secretsmanager:") for action in as_list(statement["Action"]))
    ]

    assert [resource["Fn::Sub"].partition(":secret:")[2] for resource in reads] == [
        f"${{AWS::StackName}}/{one}/*" for one in of
    ]


def test_exactly_the_functions_that_connect_to_databases_are_in_their_subnets() -> None:
    """And no other: what asks the internet needs no way out of a subnet."""
    where = {
        "Fn::If": [
            "HasDestinationSubnets",
            {
                "SubnetIds": {"Ref": "DestinationSubnetIds"},
                "SecurityGroupIds": {"Ref": "DestinationSecurityGroupIds"},
            },
            {"Ref": "AWS::NoValue"},
        ]
    }
    reading = {
        owner
        for owner, statement in statements()
        if "secretsmanager:GetSecretValue" in as_list(statement["Action"])
        and "/destinations/*" in json.dumps(statement["Resource"])
    }
    inside = {name: each["VpcConfig"] for name, each in functions().items() if "VpcConfig" in each}
    reading.remove("BigQueryJobRole")  # which asks Google, over the internet
    reading.remove("FlowJobRole")  # whose job has a connection in place of them

    assert inside == dict.fromkeys(reading, where)
    polling = {"FlowFunction", "LakeFlowFunction"}
    assert reading == {"DeliverFunction", "PullSourceFunction"} | polling


@pytest.mark.parametrize(
    ("name", "drivers"),
    [
        ("FlowFunction", {"DriversLayer", "GoogleLayer"}),
        ("LakeFlowFunction", {"DriversLayer", "GoogleLayer", "LakeLayer", "IcebergLayer"}),
    ],
)
def test_functions_that_poll_flows_have_the_layers_with_database_drivers(
    name: str, drivers: set[str]
) -> None:
    layers = [one.get("Ref") for one in functions()[name]["Layers"]]
    assert drivers <= set(layers)
    assert len(layers) <= 5, "Lambda's limit"
    askers = [
        owner
        for owner, statement in statements()
        if "lambda:InvokeFunction" in as_list(statement["Action"])
        and f'"{name}.Alias"' in json.dumps(statement["Resource"])
    ]
    assert sorted(askers) == ["AdminFunction", "PollConnector"]


def test_iceberg_flows_may_change_only_tables_in_databases_of_flows() -> None:
    """What they may change lies in databases of flows, and beside the lake's warehouse."""
    own = [statement for owner, statement in statements() if owner == "LakeFlowFunction"]
    changing = {"glue:CreateDatabase", "glue:CreateTable", "glue:UpdateTable"}
    changed = [
        resource["Fn::Sub"].rpartition(":")[2]
        for statement in own
        if changing & set(as_list(statement["Action"]))
        for resource in as_list(statement["Resource"])
    ]
    written = [
        resource["Fn::Sub"].partition("}")[2]
        for statement in own
        if "s3:PutObject" in as_list(statement["Action"])
        for resource in as_list(statement["Resource"])
    ]
    place = LakePlace(lambda: NoopCatalog("none"), "lakesync_1a2b")

    assert changed == ["catalog", "database/${Databases.Value}_flow_*",
                       "table/${Databases.Value}_flow_*/*"]  # fmt: skip
    assert written == ["/connectors/*", "/destinations/*"]
    assert fnmatchcase(place.database("acme/orders"), "lakesync_1a2b_flow_*")
    assert not fnmatchcase(place.database("acme"), "lakesync_1a2b_flow_*")


def leading_keys(function: str) -> dict[str, list[str]]:
    """Return the partition keys of the buffer that a function reaches whole, by action."""
    return {
        action: statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
        for owner, statement in statements()
        if owner == function and is_of_buffer(statement)
        if "ForAllValues:StringEquals" not in statement["Condition"]
        for action in as_list(statement["Action"])
    }


def calls_of(read: Callable[[DynamoBuffer], object]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that a read of a gateway makes, of which something was read before."""
    calls: list[tuple[str, dict[str, Any]]] = []
    config = b64encode(pack_config(replace(GatewayConfig(), version=1))).decode()

    def call(operation: str, body: bytes) -> dict[str, Any]:
        calls.append((operation, json.loads(body)))
        return {"Item": {"d": {"B": config}, "v": {"N": "1"}, "e": {"S": "e1"}}}

    buffer = DynamoBuffer("buffer", call)  # type: ignore[arg-type]
    read(buffer)
    calls.clear()
    read(buffer)
    return calls


@pytest.mark.parametrize(
    ("function", "read", "attribute"),
    [
        ("ActionsFunction", lambda buffer: buffer.epoch("g"), "e"),
        ("PullSourceFunction", lambda buffer: buffer.config("g"), "v"),
    ],
)
def test_function_that_needs_one_attribute_of_a_head_reads_and_may_read_only_that(
    function: str, read: Callable[[DynamoBuffer], object], attribute: str
) -> None:
    """A head also has recent commits, with the rows that they wrote."""
    [(operation, request)] = calls_of(read)
    pk = request["Key"]["pk"]["S"]
    reaching = [
        statement
        for owner, statement in statements()
        if owner == function and is_of_buffer(statement)
        for each in statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
        if fnmatchcase(pk, each)
    ]

    assert pk == item_format.head_key("g", MAIN_LANE)[0]
    [statement] = reaching
    assert as_list(statement["Action"]) == [f"dynamodb:{operation}"]
    # As AWS has it for reads of some attributes: named in full, key included, and asked for.
    allowed = {"dynamodb:Attributes": ["pk", "sk", attribute]}
    assert statement["Condition"]["ForAllValues:StringEquals"] == allowed
    only = {"dynamodb:Select": "SPECIFIC_ATTRIBUTES"}
    assert statement["Condition"]["StringEqualsIfExists"] == only
    assert request["ProjectionExpression"].split(", ") == ["pk", "sk", attribute]


def test_pull_source_function_may_not_read_rows_and_only_pulls_invoke_it() -> None:
    of_buffer = leading_keys("PullSourceFunction")
    askers = [
        owner
        for owner, statement in statements()
        if "lambda:InvokeFunction" in as_list(statement["Action"])
        and "PullSourceFunction" in json.dumps(statement["Resource"])
    ]

    assert of_buffer == {
        "dynamodb:GetItem": ["*|config", "*|destinations", "|revoked|*", "|user|*"],
        "dynamodb:Query": ["|revoked|*", "|user|*"],
        "dynamodb:UpdateItem": ["|user|*"],
    }
    for pk in some(item_format.row_pks("g", "todos")):
        assert not any(fnmatchcase(pk, each) for each in of_buffer["dynamodb:GetItem"])
    for pk in (item_format.config_pk("g"), item_format.destinations_pk("g")):
        assert any(fnmatchcase(pk, each) for each in of_buffer["dynamodb:GetItem"])
    assert askers == ["PullFunction"]
    assert "Events" not in functions()["PullSourceFunction"]
    drivers = [{"Ref": name} for name in ("DriversLayer", "LakeLayer", "GoogleLayer")]
    assert not [layer for layer in functions()["PullFunction"]["Layers"] if layer in drivers]


def test_tickets_are_written_by_pulls_and_removed_by_the_authoriser_with_no_other_access() -> None:
    of_connections = [
        (owner, statement)
        for owner, statement in statements()
        if statement["Resource"] == {"Fn::GetAtt": ["ConnectionsTable", "Arn"]}
        and owner in {"AuthoriseFunction", "PullFunction"}
    ]

    assert {owner: statement["Action"] for owner, statement in of_connections} == {
        "AuthoriseFunction": "dynamodb:DeleteItem",
        "PullFunction": "dynamodb:PutItem",
    }
    for _, statement in some(of_connections):
        assert statement["Condition"] == {
            "ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["|ticket|*"]}
        }


def test_deliver_function_may_write_only_delivery_state_to_the_buffer() -> None:
    allowed = [
        statement
        for owner, statement in statements()
        if owner == "DeliverFunction" and "dynamodb:PutItem" in as_list(statement["Action"])
    ]
    [statement] = allowed
    [pattern] = statement["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]

    assert set(statement["Action"]) == {"dynamodb:PutItem", "dynamodb:DeleteItem"}
    assert fnmatchcase(item_format.delivered_pk("g1"), pattern)
    assert not fnmatchcase(item_format.destinations_pk("g1"), pattern)
    assert not fnmatchcase(item_format.log_pk("g1", "|delivered|"), pattern)


def test_connector_policy_is_attached_only_to_functions_that_run_connectors() -> None:
    given = {
        name
        for name, role in transformed()["Resources"].items()
        if "ConnectorPolicy" in str(role.get("Properties", {}).get("ManagedPolicyArns", ""))
    }

    assert given == {
        "AdminFunctionRole", "IngestFunctionRole", "FlowFunctionRole", "LakeFlowFunctionRole",
        "WebhookFunctionRole",
    }  # fmt: skip
    for name in given:
        choice = {
            "Fn::If": ["HasConnectorPolicy", {"Ref": "ConnectorPolicy"}, {"Ref": "AWS::NoValue"}]
        }
        assert choice in transformed()["Resources"][name]["Properties"]["ManagedPolicyArns"]


@pytest.mark.law("N19")
def test_allowed_database_hosts_are_passed_only_to_functions_that_connect_to_databases() -> None:
    connects = {
        name
        for name, function in functions().items()
        if {"Ref": "DriversLayer"} in function["Layers"]
    }
    connects.remove("OpenFunction")  # lists the kinds of connectors, and connects to nothing
    knows = {
        name
        for name, function in functions().items()
        if "DATABASE_HOSTS" in function["Environment"]["Variables"]
    }
    jobs = {
        name
        for name, each in template()["Resources"].items()
        if each["Type"] == "AWS::Glue::Job" and "${DatabaseHosts}" in json.dumps(each)
    }
    assert (knows, jobs) == (connects, {"FlowJob"})
    assert template()["Parameters"]["DatabaseHosts"]["Default"] == ""


def test_metrics_may_be_read_only_by_connectors_and_only_if_namespaces_are_listed() -> None:
    may = {owner for owner, statement in statements() if statement == METRICS}
    know = {
        name
        for name, each in functions().items()
        if "METRIC_NAMESPACES" in each["Environment"]["Variables"]
    }
    assert may == know == {"AdminFunction", "IngestFunction", "FlowFunction", "LakeFlowFunction"}
    allowed = json.dumps({"Fn::If": ["HasMetricNamespaces", METRICS, {"Ref": "AWS::NoValue"}]})
    assert json.dumps(template()).count("GetMetricData") == len(may), "nobody else may"
    assert json.dumps(template()).count(allowed) == len(may)
    assert template()["Parameters"]["MetricNamespaces"]["Default"] == ""


def test_connector_layer_is_attached_only_to_functions_that_run_connectors() -> None:
    choice = {"Fn::If": ["HasConnectorLayer", {"Ref": "ConnectorLayer"}, {"Ref": "AWS::NoValue"}]}
    having = {name for name, each in functions().items() if choice in each["Layers"]}

    assert having == {"AdminFunction", "IngestFunction", "FlowFunction", "WebhookFunction"}
    assert all(len(functions()[name]["Layers"]) <= 5 for name in having), "Lambda's limit"


OTHER_CATALOGUES = ("HasCatalogueSecret", "HasTableBucket")


def test_only_roles_of_the_lake_may_use_an_external_catalogue() -> None:
    lake = {"MaterialiseFunctionRole", "MaterialiseJobRole", "CheckpointJobRole", "MaintainJobRole"}
    given: dict[str, set[str]] = {name: set() for name in OTHER_CATALOGUES}
    for resource in template()["Resources"].values():
        if resource.get("Condition") in given:
            given[resource["Condition"]] |= {r["Ref"] for r in resource["Properties"]["Roles"]}
    policy = {
        "Fn::If": ["HasCataloguePolicy", {"Ref": "LakeCataloguePolicy"}, {"Ref": "AWS::NoValue"}]
    }
    having = {
        name
        for name, role in transformed()["Resources"].items()
        if policy in as_list(role.get("Properties", {}).get("ManagedPolicyArns", []))
    }

    assert given == dict.fromkeys(OTHER_CATALOGUES, lake)
    # The catalogue of a flow's URL, as the operator allows.
    lake |= {"LakeFlowFunctionRole", "FlowJobRole"}
    assert having == lake


def test_lake_catalogue_setting_is_valid_and_the_same_for_jobs_and_function() -> None:
    source = template()["Outputs"]["LakeCatalogue"]["Value"]
    [text, with_warehouse] = source["Fn::Sub"]
    table_bucket = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
    chosen = {"${LakeCatalogue}": "s3tables", "${Warehouse}": table_bucket}
    for name, value in chosen.items():
        text = text.replace(name, value)
    catalogue = LakeCatalogue.from_json(re.sub(r"\$\{\w+\}", "", text))

    assert (catalogue.kind, catalogue.warehouse) == ("s3tables", table_bucket)
    assert with_warehouse["Warehouse"]["Fn::If"][0] == "UsesGlueCatalogue"
    arguments = {
        name: job["Properties"]["DefaultArguments"].get("--lake_catalogue")
        for name, job in resources("AWS::Glue::Job").items()
    }
    for name in ("BigQueryJob", "FlowJob"):
        assert arguments.pop(name) is None, "it reads no table of the lake"
    assert len(arguments) == 3
    assert set(map(json.dumps, arguments.values())) == {json.dumps(source)}
    variables = functions()["MaterialiseFunction"]["Environment"]["Variables"]
    assert variables["LAKE_CATALOGUE"] == source


def test_connector_secrets_have_the_name_prefix_that_the_functions_are_given() -> None:
    prefix = "${AWS::StackName}/connectors/"
    users = {
        owner: as_list(statement["Action"])
        for owner, statement in statements()
        if f"secret:{prefix}*" in json.dumps(statement["Resource"])
    }
    expected = {
        name
        for name, each in functions().items()
        if each["Environment"]["Variables"].get("CONNECTOR_SECRETS") == {"Fn::Sub": prefix}
    }

    polling = {"IngestFunction", "FlowFunction", "LakeFlowFunction", "WebhookFunction"}
    assert users.pop("FlowJobRole") == ["secretsmanager:GetSecretValue"]
    assert users.keys() == expected == polling | {"AdminFunction"}
    for reads in some(polling):
        assert users[reads] == ["secretsmanager:GetSecretValue"]


def test_actions_function_may_not_read_rows_and_reaches_only_targets_of_the_operator() -> None:
    own = [one for owner, one in statements() if owner == "ActionsFunction"]
    of_buffer = leading_keys("ActionsFunction")
    may = {action: one["Resource"] for one in own for action in as_list(one["Action"])}

    assert of_buffer == {
        "dynamodb:GetItem": ["|action|*", "|revoked|*", "|user|*"],
        "dynamodb:Query": ["|action|*", "|revoked|*", "|user|*"],
        "dynamodb:UpdateItem": ["|user|*"],
    }
    unread = (
        item_format.config_pk("g"),
        item_format.destinations_pk("g"),
        item_format.heads_pk("g", 0),
    )
    logs = (item_format.log_pk("g", "|action|"), item_format.log_pk("g", "main"))
    rows = (*item_format.row_pks("g", "|user|"), *item_format.row_pks("g", "head"))
    for pk in (*unread, *logs, *rows):
        assert not any(fnmatchcase(pk, each) for each in of_buffer["dynamodb:Query"])
    main, _ = item_format.head_key("g", "main")
    assert not any(fnmatchcase(main, each) for each in of_buffer["dynamodb:GetItem"])
    for action in ("events:PutEvents", "sqs:SendMessage", "states:StartExecution"):
        assert may[action] == {"Ref": "ActionTargets"}
    secrets = may["secretsmanager:GetSecretValue"]["Fn::Sub"]
    assert secrets.endswith(":secret:${AWS::StackName}/actions/*")
    for name in ("ActionsFunction", "AdminFunction"):
        prefix = functions()[name]["Environment"]["Variables"]["ACTION_SECRETS"]
        assert prefix == {"Fn::Sub": "${AWS::StackName}/actions/"}


def test_attachments_function_may_read_rows_and_write_only_attachments() -> None:
    own = [statement for owner, statement in statements() if owner == "AttachmentsFunction"]
    of_buffer = [
        (action, statement.get("Condition"))
        for statement in own
        if is_of_buffer(statement)
        for action in as_list(statement["Action"])
    ]
    reads = ("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query")

    assert sorted(action for action, condition in of_buffer if not condition) == sorted(reads)
    [(action, condition)] = [(action, asked) for action, asked in of_buffer if asked]
    assert action == "dynamodb:UpdateItem"
    assert condition == {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["|quota|*"]}}
    assert fnmatchcase(item_format.quota_pk("g"), "|quota|*")
    assert s3_statements("AttachmentsFunction") == (
        {"attachments/*": {"s3:GetObject", "s3:PutObject", "s3:ListMultipartUploadParts"}},
        ["attachments/*"],
    )


def test_only_the_attachments_function_may_read_attachments() -> None:
    readers = {
        owner
        for owner, statement in statements()
        if "attachments/*" in json.dumps(statement["Resource"])
        and "s3:GetObject" in statement["Action"]
    }

    assert readers == {"AttachmentsFunction"}


def test_incomplete_multipart_uploads_are_aborted_after_seven_days() -> None:
    bucket = resources("AWS::S3::Bucket")["LakeBucket"]["Properties"]
    ends = [
        rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
        for rule in bucket["LifecycleConfiguration"]["Rules"]
        if "AbortIncompleteMultipartUpload" in rule and "Prefix" not in rule
    ]

    assert ends == [7]


def test_bucket_cors_rules_allow_signed_requests_from_browsers() -> None:
    bucket = resources("AWS::S3::Bucket")["LakeBucket"]["Properties"]
    [rule] = bucket["CorsConfiguration"]["CorsRules"]
    put = S3SignedObjects("lake", Mock()).sign_put("attachments/g/k", 1, "ab" * 32)

    assert rule["AllowedOrigins"] == {"Ref": "AllowedOrigins"}
    assert rule["AllowedMethods"] == ["GET", "PUT"]
    # Browsers write the length themselves.
    assert set(put.headers) - {"content-length"} <= set(rule["AllowedHeaders"])


def test_every_route_except_open_and_webhook_routes_requires_a_token() -> None:
    auth = resources("AWS::Serverless::HttpApi")["HttpApi"]["Properties"]["Auth"]
    without = [
        name
        for name, properties in functions().items()
        for event in properties.get("Events", {}).values()
        if event["Type"] == "HttpApi" and "Auth" in event["Properties"]
    ]

    assert auth["DefaultAuthorizer"] in auth["Authorizers"]
    assert set(without) == {"OpenFunction", "WebhookFunction"}


@pytest.mark.law("W9")
def test_http_api_uses_payload_format_2_for_every_route() -> None:
    """An HTTP API decides that by itself: it has no list of binary types, as a REST API has."""
    resources_after = transformed()["Resources"]
    (api,) = [one for one in resources_after.values() if one["Type"] == "AWS::ApiGatewayV2::Api"
              and "Body" in one["Properties"]]  # fmt: skip
    integrations = [
        operation["x-amazon-apigateway-integration"]
        for methods in api["Properties"]["Body"]["paths"].values()
        for operation in methods.values()
    ]

    assert {one["payloadFormatVersion"] for one in integrations} == {"2.0"}
    assert {one["type"] for one in integrations} == {"aws_proxy"}
    assert "AWS::ApiGateway::RestApi" not in {one["Type"] for one in resources_after.values()}


def test_authoriser_answers_are_cached_per_token_for_sixty_seconds() -> None:
    auth = resources("AWS::Serverless::HttpApi")["HttpApi"]["Properties"]["Auth"]
    identity = auth["Authorizers"]["Token"]["Identity"]

    assert identity == {"Headers": ["Authorization"], "ReauthorizeEvery": 60}


def test_http_access_log_format_has_no_field_that_may_contain_a_token() -> None:
    form = resources("AWS::Serverless::HttpApi")["HttpApi"]["Properties"]["AccessLogSettings"]
    form = {"Format": form["Format"]["Fn::Sub"]}

    assert "requestId" in json.loads(form["Format"])
    for word in ("header", "authorizer", "query", "path", "overrides"):
        assert word not in form["Format"]


IDENTITY_PROVIDER = {
    "JwtAlgorithms": "RS256,ES256",
    "JwksUrl": "https://id.example/jwks.json",
    "JwtIssuer": "https://id.example",
    "JwtAudience": "lakesync",
}


@pytest.mark.parametrize("name", ["JwksUrl", "JwtIssuer", "JwtAudience"])
@pytest.mark.parametrize("algorithms", ["RS256", "ES256", "RS256,ES256"])
def test_public_key_algorithms_require_an_issuer_and_an_audience(
    name: str, algorithms: str
) -> None:
    parameters = IDENTITY_PROVIDER | {"JwtAlgorithms": algorithms}

    assert refusals(parameters) == []
    (refusal,) = refusals(parameters | {name: ""})
    assert name in refusal


def test_shared_secret_requires_no_issuer_or_audience() -> None:
    names = ("JwtAlgorithms", "JwksUrl", "JwtIssuer", "JwtAudience")
    defaults = {name: template()["Parameters"][name]["Default"] for name in names}

    assert defaults["JwtAlgorithms"] == "HS256"
    assert refusals(defaults) == []


def test_web_socket_access_log_format_has_no_field_that_may_contain_a_token() -> None:
    _, form, _ = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"][
        "AccessLogSettings"
    ]["Fn::If"]

    assert "requestId" in json.loads(form["Format"])
    for word in ("header", "authorizer", "query", "path", "overrides"):
        assert word not in form["Format"]


def test_web_socket_connections_require_a_verified_token() -> None:
    properties = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"]

    assert properties["Auth"] == {
        "AuthType": "CUSTOM",
        "AuthArn": {"Ref": "AuthoriseFunction.Alias"},
    }
    assert template()["Parameters"]["SocketTokenInQuery"]["Default"] == "no"


def test_flush_scheduler_runs_each_minute_and_knows_its_scheduled_time() -> None:
    """The scheduler puts in the time for which it scheduled the call, whenever it makes it.

    https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-schedule-context-attributes.html
    """
    function = functions()["ScheduleFlushFunction"]
    schedule = function["Events"]["Schedule"]["Properties"]
    variables = function["Environment"]["Variables"]

    assert schedule["ScheduleExpression"] == "rate(1 minute)"
    assert json.loads(schedule["Input"]) == {"at": "<aws.scheduler.scheduled-time>"}
    assert variables["FLUSH_EVERY_MINUTES"] == {"Ref": "FlushEveryMinutes"}


def test_metrics_of_each_gateway_are_off_by_default() -> None:
    variables = template()["Globals"]["Function"]["Environment"]["Variables"]

    assert template()["Parameters"]["Watching"]["Default"] == "basic"
    of_some = {"Fn::If": ["WatchesSample", "5%", "no"]}
    assert variables["GATEWAY_METRICS"] == {"Fn::If": ["WatchesGateways", "yes", of_some]}


def test_functions_may_post_frames_only_to_connections_of_their_stack() -> None:
    posting = {
        owner: json.dumps(statement["Resource"])
        for owner, statement in statements()
        if "execute-api:ManageConnections" in as_list(statement["Action"])
    }

    assert posting.keys() == {"AdminFunction", "FramesFunction", "NotifyFunction"}
    assert all("${SocketApi}/live/" in resource for resource in posting.values())


def test_stream_filter_matches_heads_configurations_and_revocations() -> None:
    source = resources("AWS::Lambda::EventSourceMapping")["NotifySource"]["Properties"]
    [wanted] = source["FilterCriteria"]["Filters"]
    [key] = json.loads(wanted["Pattern"])["dynamodb"]["Keys"].values()
    ends = tuple(one["suffix"] for one in key["S"] if "suffix" in one)
    begins = tuple(one["prefix"] for one in key["S"] if "prefix" in one)
    heads = [
        item_format.head_key("g1", MAIN_LANE)[0],
        *(item_format.heads_pk("g1", n) for n in item_format.GROUPS),
    ]

    assert all(pk.endswith(ends) for pk in [*heads, item_format.config_pk("g1")])
    assert item_format.revoked_pk("g1").startswith(begins)
    for pk in (
        item_format.log_pk("g1", MAIN_LANE),
        item_format.flush_pk("g1"),
        *item_format.row_pks("g1", "config"),
    ):
        assert not pk.endswith(ends)
    assert resources("AWS::DynamoDB::Table")["BufferTable"]["Properties"][
        "StreamSpecification"
    ] == {"StreamViewType": "NEW_IMAGE"}


def test_broadcasts_are_bounded_in_concurrency_and_rate() -> None:
    notify = functions()["NotifyFunction"]
    pace = template()["Parameters"]["RequestRates"]["Default"].split(",")

    assert notify["Environment"]["Variables"]["SENT_PER_S"] == part(4, "RequestRates")
    assert int(pace[4]) == SENT_PER_S_MAX
    assert accepts("RequestRates", "1,1,1,1,10000")
    assert not accepts("RequestRates", "1,1,1,1,10001"), "of all APIs of an account"
    assert notify["ReservedConcurrentExecutions"]["Fn::If"][1] == part(3, "Concurrency")


def test_notify_function_reports_partial_failures_and_its_timeout_equals_a_turn() -> None:
    source = resources("AWS::Lambda::EventSourceMapping")["NotifySource"]["Properties"]
    timeout_ms = 1_000 * functions()["NotifyFunction"]["Timeout"]

    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["MaximumRecordAgeInSeconds"] * 1_000 >= 4 * timeout_ms
    assert timeout_ms == TURN_MS_MAX, "a process that died is taken over from, no sooner"


# --- nothing fails unseen -------------------------------------------------------------------------


def answers(name: str, properties: dict[str, Any]) -> bool:
    """Return whether a function answers callers over HTTP or a WebSocket, or for one that does."""
    api = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"]
    routes = [route["FunctionArn"]["Ref"] for route in api["Routes"].values()]
    kinds = {event["Type"] for event in properties.get("Events", {}).values()}
    return "HttpApi" in kinds or f"{name}.Alias" in routes or name == "PullSourceFunction"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_has_a_timeout_tracing_and_log_retention(name: str) -> None:
    properties = functions()[name]
    log_group = properties["LoggingConfig"]["LogGroup"]["Ref"]

    assert 0 < properties["Timeout"] <= 300
    assert properties["Tracing"] == {"Fn::If": ["Traces", "Active", "PassThrough"]}
    assert "RetentionInDays" in resources("AWS::Logs::LogGroup")[log_group]["Properties"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_failure_of_a_function_raises_an_alarm(name: str) -> None:
    """By what its callers see, so that no function needs an alarm of its own."""
    properties = functions()[name]
    events = {event["Type"] for event in properties.get("Events", {}).values()}
    api = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"]
    called = json.dumps([api["Routes"], api["Auth"], resources("AWS::Serverless::HttpApi")])
    machines = json.dumps(resources("AWS::Serverless::StateMachine"))
    own = f"{name.removesuffix('Function')}Fails"
    noticed = {
        "RequestsFail": "HttpApi" in events or f"{name}.Alias" in called,
        "SocketsFail": f"{name}.Alias" in json.dumps(api),
        "PollsFail": f"{name}.Alias" in machines,  # or the rule ExecutionFailure
        "DependenciesFail": name == "PullSourceFunction",  # a pull's function calls it
        own: {"Ref": name} in alarms_on("AWS/Lambda", "Errors"),
    }

    assert properties["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] == folder_of(
        properties
    )
    names = resources("AWS::CloudWatch::Alarm").keys()
    assert {alarm for alarm, notices in noticed.items() if notices} & names


def test_functions_behind_api_gateway_time_out_within_its_limit() -> None:
    timeouts = [each["Timeout"] for name, each in functions().items() if answers(name, each)]
    assert max(timeouts) < 30


@pytest.mark.law("B11")
def test_pushing_functions_time_out_well_before_commits_must_be_visible() -> None:
    for name in (
        "PushFunction",
        "FramesFunction",
        "IngestFunction",
        "FlowFunction",
        "LakeFlowFunction",
    ):
        assert functions()[name]["Timeout"] * 1000 <= VISIBLE_MS_MAX // 2
    assert Limits().commit_deadline_ms < VISIBLE_MS_MAX // 2


def _sources() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    sources = []
    for name, mapping in some(resources("AWS::Lambda::EventSourceMapping").items()):
        source = mapping["Properties"]
        if source["EventSourceArn"].get("Fn::GetAtt", [""])[0] in resources("AWS::SQS::Queue"):
            function = source["FunctionName"]["Ref"].removesuffix(".Alias")
            sources.append((name, functions()[function], source))
    return list(some(sources))


@pytest.mark.parametrize(
    "mapping", ["FlushFunctionDue", "MaterialiseFunctionAnnounced", "DeliverFunctionClaimed"]
)
def test_queue_concurrency_is_a_parameter_within_the_bounds_of_lambda(
    mapping: str,
) -> None:
    """Lambda takes 2 to 1,000 (``MaximumConcurrency`` of ``ScalingConfig``)."""
    source = resources("AWS::Lambda::EventSourceMapping")[mapping]["Properties"]

    assert source["ScalingConfig"] == {"MaximumConcurrency": part(4, "Concurrency")}
    for most, taken in (("1", False), ("2", True), ("1000", True), ("1001", False)):
        assert accepts("Concurrency", f"0,0,0,0,{most}") is taken, most


@pytest.mark.parametrize(("name", "function", "source"), _sources())
def test_each_queue_retries_failed_messages_and_has_a_dead_letter_queue_with_an_alarm(
    name: str, function: dict[str, Any], source: dict[str, Any]
) -> None:
    queues = resources("AWS::SQS::Queue")
    queue = queues[source["EventSourceArn"]["Fn::GetAtt"][0]]["Properties"]
    dead_letters = queue["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]

    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    windows = [sizes["AnnounceWindow"] for sizes in template()["Mappings"]["Sizes"].values()]
    window = max(windows) if "MaximumBatchingWindowInSeconds" in source else 0
    assert queue["VisibilityTimeout"] >= 6 * function["Timeout"] + window
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= 5
    assert queues[dead_letters]["Properties"]["MessageRetentionPeriod"] == 14 * 24 * 3600
    watched = alarms_on("AWS/SQS", "ApproximateNumberOfMessagesVisible")
    assert {"Fn::GetAtt": [dead_letters, "QueueName"]} in watched
    aged = alarms_on("AWS/SQS", "ApproximateAgeOfOldestMessage")
    assert {"Fn::GetAtt": [source["EventSourceArn"]["Fn::GetAtt"][0], "QueueName"]} in aged


def test_every_alarm_notifies_the_alarm_topic() -> None:
    for name, alarm in resources("AWS::CloudWatch::Alarm").items():
        assert alarm["Properties"]["AlarmActions"] == [{"Ref": "AlarmTopic"}], name
        assert alarm["Properties"]["AlarmDescription"]


def test_every_log_group_has_a_retention() -> None:
    for name, group in resources("AWS::Logs::LogGroup").items():
        assert group["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"}, name


@pytest.mark.parametrize(
    ("job", "role", "packages"),
    [
        ("CheckpointJob", "CheckpointJobRole", "checkpoint"),
        ("BigQueryJob", "BigQueryJobRole", "bigquery"),
        ("FlowJob", "FlowJobRole", "flow"),
    ],
)
def test_jobs_install_packages_only_from_the_lake_bucket(
    job: str, role: str, packages: str
) -> None:
    arguments = resources("AWS::Glue::Job")[job]["Properties"]["DefaultArguments"]
    reads = [
        each
        for who, each in statements()
        if who == role and "s3:GetObject" in as_list(each["Action"])
    ]

    assert arguments["--additional-python-modules"] == {"Fn::GetAtt": ["JobPackages", packages]}
    assert arguments["--python-modules-installer-option"] == "--no-index"
    assert "${LakeBucket.Arn}/packages/*" in json.dumps(reads)


def test_job_packages_are_stored_again_when_their_content_changes() -> None:
    [stored] = resources("Custom::JobPackages").values()
    layer = resources("AWS::Serverless::LayerVersion")["JobPackagesLayer"]
    function = resources("AWS::Lambda::Function")["JobPackagesFunction"]["Properties"]

    # The layer's ARN has another version with every other content.
    assert stored["Properties"]["Layer"] == {"Ref": "JobPackagesLayer"}
    assert stored["Properties"]["GlueVersion"] == {"Ref": "GlueVersion"}
    assert {"Ref": "JobPackagesLayer"} in function["Layers"]
    assert int(stored["Properties"]["ServiceTimeout"]) > function["Timeout"]
    assert layer["Metadata"]["ContextPath"] == {"Fn::Sub": "layers/glue/${GlueVersion}"}
    made = {path.parent.name for path in (ROOT / "layers" / "glue").glob("*/Makefile")}
    assert made == set(template()["Parameters"]["GlueVersion"]["AllowedValues"])


@pytest.mark.law("Y11")
def test_flow_job_has_the_settings_and_rights_of_the_flow_function() -> None:
    job = resources("AWS::Glue::Job")["FlowJob"]["Properties"]
    given = json.dumps(job["DefaultArguments"]["--settings"]).replace("\\", "")
    function = functions()["FlowFunction"]["Environment"]["Variables"]
    # The job reads, and reports no schemas; metrics are in no table that is divided.
    own = {"POWERTOOLS_SERVICE_NAME", "AUDIT_TABLE", "SCHEMA_EVENT_BUS", "METRIC_NAMESPACES"}
    assert set(re.findall(r'"([A-Z_]+)":"', given)) == function.keys() - own
    assert job["Connections"]["Fn::If"][0] == "HasFlowConnection"
    assert function["FLOW_JOB_ROWS"]["Fn::If"] == ["HasFlowJob", part(2, "JobBounds"), "0"]
    assert template()["Parameters"]["JobBounds"]["Default"].split(",")[2] == "1000000"
    [is_wanted, reaches] = template()["Conditions"]["HasFlowJob"]["Fn::And"]
    assert is_wanted == {"Fn::Not": [{"Fn::Equals": [part(2, "JobBounds"), "0"]}]}
    assert {"Condition": "HasDestinationZone"} in reaches["Fn::Or"]

    artefacts = json.dumps({"Fn::Sub": "arn:${AWS::Partition}:s3:::${ArtefactBuckets}/*"})
    packages = json.dumps({"Fn::Sub": "${LakeBucket.Arn}/packages/*"})

    def may(owner: str) -> set[str]:
        return {
            json.dumps([action, statement["Resource"], statement.get("Condition")])
            for who, statement in statements()
            if who == owner
            for action in as_list(statement["Action"])
            if action.partition(":")[0] in {"dynamodb", "sqs", "secretsmanager", "s3", "glue"}
            and json.dumps(statement["Resource"]) not in {artefacts, packages}
            and "AuditTable" not in json.dumps(statement["Resource"])
        }

    # It makes tables of Iceberg, and is handed none to read: they are not read in stretches.
    assert not hasattr(IcebergDatabase, "row_ahead")
    catalogue = {one for one in may("LakeFlowFunction") if one.startswith('["glue:')}
    assert may("FlowJobRole") == may("FlowFunction") | catalogue
    lakes = functions()["LakeFlowFunction"]["Environment"]["Variables"]
    assert lakes["FLOW_JOB_ROWS"] == function["FLOW_JOB_ROWS"]
    network = template()["Resources"]["FlowJobNetwork"]
    assert network["Condition"] == "HasFlowConnection"
    for statement in network["Properties"]["PolicyDocument"]["Statement"]:
        actions = as_list(statement["Action"])
        assert statement["Resource"] != "*" or all("ec2:Describe" in one for one in actions)


@pytest.mark.law("D17")
def test_bigquery_function_and_job_share_one_bound_and_at_most_one_run_is_active() -> None:
    job = resources("AWS::Glue::Job")["BigQueryJob"]["Properties"]
    function = functions()["DeliverFunction"]
    bound = part(1, "JobBounds")

    assert template()["Parameters"]["JobBounds"]["Default"].split(",")[1] == "200000"
    assert function["Environment"]["Variables"]["BIGQUERY_JOB_DELTAS"] == bound
    assert job["DefaultArguments"]["--deltas_min"]["Fn::If"][:2] == ["HasBigQueryJob", bound]
    assert job["ExecutionProperty"]["MaxConcurrentRuns"] == 1


# --- functions and their files --------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_is_one_short_file_and_has_sample_events(name: str) -> None:
    folder = folder_of(functions()[name])
    code = (ROOT / "functions" / folder / "app.py").read_text()

    assert len(code.splitlines()) <= 40
    assert list((ROOT / "events").glob(f"{folder}_*.json"))


def test_every_function_folder_and_sample_event_belongs_to_a_function() -> None:
    folders = {folder_of(properties) for properties in functions().values()}
    own = resources("AWS::Lambda::Function").values()
    folders |= {each["Properties"]["Code"].removeprefix("functions/") for each in own}

    assert {path.parent.name for path in (ROOT / "functions").glob("*/app.py")} == folders
    for path in (ROOT / "events").glob("*.json"):
        assert any(path.name.startswith(f"{folder}_") for folder in folders), path.name
        json.loads(path.read_text())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AuthoriseFunction", websockets.AuthoriseFunctionSettings),
        ("PushFunction", settings.PushSettings),
        ("PullFunction", websockets.PullFunctionSettings),
        ("AdminFunction", websockets.AdminFunctionSettings),
        ("FlushFunction", settings.FlushSettings),
        ("ScheduleFlushFunction", settings.ScheduleFlushSettings),
        ("MaterialiseFunction", settings.MaterialiseSettings),
        ("RetainFunction", settings.RetainSettings),
        ("IngestFunction", settings.PollSettings),
        ("FlowFunction", settings.PollSettings),
        ("LakeFlowFunction", settings.PollSettings),
        ("ActionsFunction", settings.ActionSettings),
        ("AttachmentsFunction", settings.AttachmentSettings),
        ("DeliverFunction", settings.DeliverSettings),
        ("PullSourceFunction", settings.SourcePullSettings),
        ("ConnectFunction", websockets.ConnectSettings),
        ("DisconnectFunction", websockets.ConnectionsSettings),
        ("FramesFunction", websockets.FramesSettings),
        ("NotifyFunction", websockets.NotifySettings),
    ],
)
def test_each_function_has_all_required_environment_variables_and_no_unknown_ones(
    name: str, kind: Any
) -> None:
    own = functions()[name]["Environment"]["Variables"].keys() - {"POWERTOOLS_SERVICE_NAME"}
    known = {field.metadata["variable"] for field in fields(kind)}
    needed = {field.metadata["variable"] for field in fields(kind) if field.default is MISSING}

    assert needed - SET_BY_LAMBDA <= own <= known


def test_local_stage_omits_only_the_listed_resource_types() -> None:
    for name, resource in template()["Resources"].items():
        of_lake = resource.get("Condition") in {*OTHER_CATALOGUES, "UsesLakeFormation"}
        of_subnets = resource.get("Condition") == "HasFlowConnection"
        of_account = resource.get("Condition") in {
            "LogsSockets", "MakesLogRole", "EncryptsAlarms", "WatchesDetails",
        }  # fmt: skip
        conditional = "Condition" in resource and not (of_lake or of_subnets or of_account)
        assert not conditional or resource["Type"] in WITHOUT, name


def test_layers_are_built_for_the_deployed_runtime_and_architecture() -> None:
    runtimes = template()["Parameters"]["PythonRuntime"]["AllowedValues"]
    architectures = template()["Parameters"]["Architecture"]["AllowedValues"]
    for name, layer in resources("AWS::Serverless::LayerVersion").items():
        if name == "JobPackagesLayer":  # for Glue's Python
            continue
        folder = {"Fn::Sub": "layers/runtimes/${PythonRuntime}/${Architecture}"}
        assert layer["Metadata"]["ContextPath"] == folder
        assert layer["Metadata"]["BuildArchitecture"] == {"Ref": "Architecture"}
        assert layer["Properties"]["CompatibleRuntimes"] == [{"Ref": "PythonRuntime"}], name
        assert layer["Properties"]["CompatibleArchitectures"] == [{"Ref": "Architecture"}], name
    folders = (ROOT / "layers" / "runtimes").glob("*/*/Makefile")
    made = {(path.parent.parent.name, path.parent.name) for path in folders}

    assert made == set(itertools.product(runtimes, architectures))
