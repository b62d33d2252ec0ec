"""``functions/attachments``, over a buffer and a store in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.ports import SignedRequest
from tests.functions.conftest import event
from tests.support.builders import at_ms, insert, push
from tests.support.gateways import administrator, pusher

if TYPE_CHECKING:
    import io

    from tests.functions.conftest import Functions

REFERENCE = json.loads(event("attachments_upload")["body"])["reference"]


def test_a_file_is_uploaded_and_downloaded(functions: Functions) -> None:
    asked = functions.http("attachments", "attachments_upload")
    assert asked.status == 200
    assert asked.headers["cache-control"] == "no-store"
    assert (asked.json["stored"], asked.json["partsStored"]) == (False, 0)
    [request] = asked.json["requests"]
    signed = SignedRequest(request["url"], request["headers"], request["part"])
    functions.attachments.send_bytes(signed, b"a photograph")
    assert functions.http("attachments", "attachments_upload").json == {
        "stored": True,
        "requests": [],
        "partsStored": 1,
    }
    hidden = functions.http("attachments", "attachments_download")
    assert (hidden.status, hidden.json["code"]) == (404, "NOT_FOUND")
    row = insert("t1", at=at_ms(1), photo=REFERENCE)
    pusher(functions.buffer).push("demo", push(row))
    answer = functions.http("attachments", "attachments_download")
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    reads = SignedRequest(answer.json["url"], answer.json["headers"])
    assert b"".join(functions.attachments.receive_bytes(reads, 0)) == b"a photograph"


def test_downloading_an_attachment_not_yet_uploaded_has_a_code_of_its_own(
    functions: Functions,
) -> None:
    pusher(functions.buffer).push("demo", push(insert("t1", at=at_ms(1), photo=REFERENCE)))
    answer = functions.http("attachments", "attachments_download")

    assert (answer.status, answer.json["code"]) == (404, "NOT_YET_UPLOADED")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.law("G4")
def test_an_attachment_of_a_row_hidden_by_sync_rules_is_not_found(functions: Functions) -> None:
    filters = [{"column": "owner", "op": "eq", "value": "jwt:sub"}]
    bucket = {"name": "own", "tables": ["todos"], "filters": filters}
    administrator(functions.buffer).save_rules("demo", {"buckets": [bucket]})
    row = insert("t1", at=at_ms(1), owner="ann", photo=REFERENCE)
    pusher(functions.buffer).push("demo", push(row))
    answers = {
        user: functions.http("attachments", event("attachments_download", sub=user))
        for user in ("ann", "eve")
    }
    codes = {user: answer.json["code"] for user, answer in answers.items()}

    assert codes == {"ann": "NOT_YET_UPLOADED", "eve": "NOT_FOUND"}


@pytest.mark.parametrize("name", ["attachments_upload", "attachments_download"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([], 400, "VALIDATION_ERROR"),
        ({}, 400, "VALIDATION_ERROR"),
        ({"reference": 7, "table": "t", "rowId": "r", "column": "c"}, 400, "VALIDATION_ERROR"),
        ({"reference": REFERENCE, "parts": "all", "table": 1}, 400, "VALIDATION_ERROR"),
        ({"reference": REFERENCE, "upload": [], "table": "a b", "rowId": "r", "column": "c"},
         400, "VALIDATION_ERROR"),
        ({"reference": REFERENCE, "parts": [[]], "table": "t", "rowId": "", "column": "c"},
         400, "VALIDATION_ERROR"),
        ({"reference": "x" * 70_000}, 413, "BODY_TOO_LARGE"),
        ({"reference": REFERENCE.replace(":12:", ":4000000000:"), "table": "t", "rowId": "r",
          "column": "c"}, (413, 404), ("BODY_TOO_LARGE", "NOT_FOUND")),
    ],
)  # fmt: skip
def test_invalid_attachment_requests_are_refused_with_a_reason(
    functions: Functions, name: str, body: object, status: Any, code: Any
) -> None:
    answer = functions.http("attachments", event(name, body=body))

    assert answer.status in (status if isinstance(status, tuple) else (status,))
    assert answer.json["code"] in (code if isinstance(code, tuple) else (code,))
    assert len(answer.json["error"]) > 10
    assert functions.attachments.objects == {}


def test_an_attachment_request_in_protobuf_is_refused(functions: Functions) -> None:
    sent = event("attachments_upload")
    sent["headers"]["content-type"] = "application/x-protobuf"
    answer = functions.http("attachments", sent)

    assert (answer.status, answer.json["field"]) == (400, "Content-Type")


def test_upload_requests_count_towards_the_push_quota(functions: Functions) -> None:
    handler = functions.load("attachments")
    answers = (handler(event("attachments_upload"), None) for _ in range(2_000))
    refused = next(answer for answer in answers if answer["statusCode"] != 200)

    assert refused["statusCode"] == 429
    assert json.loads(refused["body"])["code"] == "RATE_LIMITED"
    assert int(refused["headers"]["retry-after"]) > 0


def test_attachment_urls_and_references_are_not_logged(
    functions: Functions, log: io.StringIO
) -> None:
    functions.http("attachments", "attachments_upload")
    functions.http("attachments", "attachments_download")

    assert "memory:" not in log.getvalue()
    assert REFERENCE not in log.getvalue()
