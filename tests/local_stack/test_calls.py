"""The record of calls: what AWS asks about each kind of request that LakeSync sends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.infrastructure.stack import resources
from tools.local_stack.calls import dynamodb
from tools.local_stack.calls.questions import Question, Request, UnknownCallError, asked
from tools.local_stack.emulator.record_patches import Record

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "arn:aws:dynamodb:us-east-1:000000000000:table/T"


def call(service: str, operation: str, **document: Any) -> list[Question]:
    request = Request(
        service, "POST", "/", headers={"x-amz-target": f"Some_1.{operation}"},
        body=json.dumps(document).encode(),
    )  # fmt: skip
    name, questions = asked(request, 200)
    assert name == operation
    return questions


def s3(method: str, path: str, status: int = 200, body: bytes = b"", **headers: str) -> Any:
    address, _, query = path.partition("?")
    flat = dict(part.partition("=")[::2] for part in query.split("&")) if query else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return asked(Request("s3", method, address, flat, named, body), status)


def pairs(questions: list[Question]) -> list[tuple[str, str]]:
    return [(one.action, one.resource.removeprefix("arn:aws:")) for one in questions]


def test_get_item_is_checked_by_partition_key_and_attributes() -> None:
    (whole,) = call("dynamodb", "GetItem", TableName="T", Key={"pk": {"S": "g|head"}})
    (part,) = call(
        "dynamodb", "GetItem", TableName="T", Key={"pk": {"S": "g|head"}, "sk": {"S": "0"}},
        ProjectionExpression="#v, e", ExpressionAttributeNames={"#v": "v"},
    )  # fmt: skip

    assert whole[:2] == ("dynamodb:GetItem", TABLE)
    assert dict(whole.context) == {
        "dynamodb:Attributes": ("pk",),
        "dynamodb:LeadingKeys": ("g|head",),
        "dynamodb:Select": ("ALL_ATTRIBUTES",),
    }
    assert dict(part.context) == {
        "dynamodb:Attributes": ("e", "pk", "sk", "v"),
        "dynamodb:LeadingKeys": ("g|head",),
        "dynamodb:Select": ("SPECIFIC_ATTRIBUTES",),
    }


def test_transaction_is_checked_for_each_kind_of_item() -> None:
    key = {"TableName": "T", "Key": {"pk": {"S": "a"}}}
    questions = call(
        "dynamodb", "TransactWriteItems",
        TransactItems=[
            {"Put": {"TableName": "T", "Item": {"pk": {"S": "b"}}}},
            {"Update": key}, {"Delete": key}, {"ConditionCheck": key}, {"Delete": key},
        ],
    )  # fmt: skip

    assert [one.action.partition(":")[2] for one in questions] == [
        "PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem",
    ]  # fmt: skip
    assert dict(questions[0].context)["dynamodb:LeadingKeys"] == ("b",)


def test_index_query_is_checked_by_index_and_partition_key() -> None:
    (query,) = call(
        "dynamodb", "Query", TableName="T", IndexName="i",
        KeyConditionExpression="#p = :p and o > :o",
        ExpressionAttributeNames={"#p": "pk"},
        ExpressionAttributeValues={":p": {"S": "x"}, ":o": {"N": "1"}},
    )  # fmt: skip
    (scan,) = call("dynamodb", "Scan", TableName="T")

    assert query.resource == f"{TABLE}/index/i"
    assert dict(query.context)["dynamodb:LeadingKeys"] == ("x",)
    assert "dynamodb:LeadingKeys" not in dict(scan.context)


def test_batch_operations_are_checked_by_all_their_keys() -> None:
    keys = [{"pk": {"S": "b"}}, {"pk": {"S": "a"}}]
    (read,) = call("dynamodb", "BatchGetItem", RequestItems={"T": {"Keys": keys}})
    (write,) = call(
        "dynamodb", "BatchWriteItem",
        RequestItems={"T": [{"DeleteRequest": {"Key": key}} for key in keys]},
    )  # fmt: skip

    for question in (read, write):
        assert dict(question.context)["dynamodb:LeadingKeys"] == ("a", "b")


def test_every_table_of_the_template_has_the_expected_partition_key() -> None:
    for table in resources("AWS::DynamoDB::Table").values():
        schema = table["Properties"]["KeySchema"]
        assert schema[0] == {"AttributeName": dynamodb.PARTITION_KEY, "KeyType": "HASH"}


@pytest.mark.parametrize(
    ("method", "path", "operation", "action", "resource"),
    [
        ("GET", "/b/a/k", "GetObject", "GetObject", "b/a/k"),
        ("GET", "/b/a/k?versionId=1", "GetObject", "GetObjectVersion", "b/a/k"),
        ("HEAD", "/b/a/k", "HeadObject", "GetObject", "b/a/k"),
        ("PUT", "/b/a/k", "PutObject", "PutObject", "b/a/k"),
        ("DELETE", "/b/a/k", "DeleteObject", "DeleteObject", "b/a/k"),
        ("POST", "/b/a/k?uploads=", "CreateMultipartUpload", "PutObject", "b/a/k"),
        ("PUT", "/b/a/k?uploadId=1&partNumber=1", "UploadPart", "PutObject", "b/a/k"),
        ("GET", "/b/a/k?uploadId=1", "ListParts", "ListMultipartUploadParts", "b/a/k"),
        ("DELETE", "/b/a/k?uploadId=1", "AbortMultipartUpload", "AbortMultipartUpload", "b/a/k"),
        ("GET", "/b?list-type=2", "ListObjectsV2", "ListBucket", "b"),
        ("HEAD", "/b", "HeadBucket", "ListBucket", "b"),
        ("GET", "/b?versions=", "ListObjectVersions", "ListBucketVersions", "b"),
    ],
)
def test_s3_calls_map_to_their_policy_actions_and_resources(
    method: str, path: str, operation: str, action: str, resource: str
) -> None:
    named, questions = s3(method, path)

    assert named == operation
    assert pairs(questions) == [(f"s3:{action}", f"s3:::{resource}")]


def test_s3_listing_is_checked_by_its_prefix() -> None:
    (listing,) = s3("GET", "/b?list-type=2&prefix=a/")[1]

    assert listing.context == (("s3:prefix", ("a/",)),)


def test_get_of_a_missing_object_also_requires_list_bucket() -> None:
    assert pairs(s3("GET", "/b/k", 404)[1]) == [
        ("s3:GetObject", "s3:::b/k"), ("s3:ListBucket", "s3:::b"),
    ]  # fmt: skip


def test_s3_copy_also_requires_get_object_on_its_source() -> None:
    operation, questions = s3("PUT", "/b/new", x_amz_copy_source="b/old%20one")

    assert operation == "CopyObject"
    assert pairs(questions) == [("s3:PutObject", "s3:::b/new"), ("s3:GetObject", "s3:::b/old one")]


def test_s3_multi_delete_requires_permission_for_each_object() -> None:
    body = b"<Delete><Object><Key>a</Key></Object><Object><Key>b</Key><VersionId>1</VersionId>"
    questions = s3("POST", "/b?delete=", body=body + b"</Object></Delete>")[1]

    assert pairs(questions) == [
        ("s3:DeleteObject", "s3:::b/a"), ("s3:DeleteObjectVersion", "s3:::b/b"),
    ]  # fmt: skip


def test_glue_table_calls_require_table_database_and_catalogue() -> None:
    wanted = [
        ("glue:GetTable", f"glue:us-east-1:000000000000:{resource}")
        for resource in ("catalog", "database/d", "table/d/t")
    ]

    assert pairs(call("glue", "GetTable", DatabaseName="d", Name="t")) == wanted


def test_send_message_batch_requires_send_message() -> None:
    url = "http://localhost/000000000000/q"

    assert pairs(call("sqs", "SendMessageBatch", QueueUrl=url)) == [
        ("sqs:SendMessage", "sqs:us-east-1:000000000000:q")
    ]


def test_schedule_requires_pass_role_and_its_role_the_target_action() -> None:
    machine = "arn:aws:states:us-east-1:000000000000:stateMachine:m"
    role = "arn:aws:iam::000000000000:role/r"
    body = {"GroupName": "g", "Target": {"Arn": machine, "RoleArn": role}}
    request = Request("scheduler", "POST", "/schedules/s", body=json.dumps(body).encode())

    created, passed, fires = asked(request, 200)[1]

    assert created.resource.endswith(":schedule/g/s")
    assert passed == (
        "iam:PassRole", role, (("iam:PassedToService", ("scheduler.amazonaws.com",)),), "",
    )  # fmt: skip
    assert fires == ("states:StartExecution", machine, (), "r")


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/_aws/execute-api/a1/live/@connections/c%3D", "127.0.0.1"),
        ("/live/@connections/c%3D", "a1.execute-api.localhost"),
    ],
)
def test_connection_calls_are_checked_by_api_and_stage(path: str, host: str) -> None:
    sent = asked(Request("execute-api", "POST", path, headers={"host": host}), 200)

    assert pairs(sent[1]) == [
        ("execute-api:ManageConnections",
         "execute-api:us-east-1:000000000000:a1/live/POST/@connections/c=")
    ]  # fmt: skip


def test_invocation_is_checked_by_function_alias() -> None:
    request = Request(
        "lambda", "POST", "/2015-03-31/functions/f/invocations", {"Qualifier": "live"}
    )

    assert pairs(asked(request, 200)[1]) == [
        ("lambda:InvokeFunction", "lambda:us-east-1:000000000000:function:f:live")
    ]


@pytest.mark.parametrize(
    "request_of",
    [
        Request("s3", "PUT", "/b", {"policy": ""}),
        Request("s3", "PUT", "/b/k", headers={"x-amz-tagging": "a=b"}),
        Request("kms", "POST", "/", headers={"x-amz-target": "Trent.Decrypt"}),
        Request("dynamodb", "POST", "/", headers={"x-amz-target": "D.ExecuteStatement"}),
        Request("sqs", "POST", "/"),
        Request("lambda", "GET", "/2015-03-31/functions/f"),
    ],
    ids=lambda request: f"{request.service} {request.method}",
)
def test_call_with_unknown_permissions_is_refused(request_of: Request) -> None:
    with pytest.raises(UnknownCallError):
        asked(request_of, 200)


def test_call_record_has_each_entry_once_and_lists_unknown_calls(tmp_path: Path) -> None:
    record = Record(tmp_path / "calls.jsonl")
    for _ in range(2):
        record.add("ASIA1", "assumed-role/R/f", Request("s3", "GET", "/b/k"), 200)
        record.add("ASIA1", "assumed-role/R/f", Request("kms", "POST", "/x"), 200)
        record.add("ASIA1", "assumed-role/R/f", Request("sqs", "POST", "/", body=b"\xff"), 200)
    record.close()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]

    assert [line["operation"].partition(" ")[0] for line in lines] == [
        "s3:GetObject", "kms:unknown:", "sqs:unknown:",
    ]  # fmt: skip
    assert lines[0]["resource"] == "arn:aws:s3:::b/k"
