"""flush, schedule_flush and materialise: messages in, objects and messages out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from lakesync.errors import InternalError, Unavailable
from lakesync.runtime.tasks import close_request
from tests.functions.conftest import Context, event, lake_bucket
from tests.support.commits import Writer
from tests.support.some import some

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

    from tests.functions.conftest import Functions


@dataclass
class Lake:
    """The bucket and the queues, behind moto."""

    flush_queue: str
    announce_queue: str

    def written(self) -> list[str]:
        objects = boto3.client("s3").list_objects_v2(Bucket="lake").get("Contents", [])
        return [item["Key"] for item in objects]

    def messages(self, url: str) -> list[Any]:
        received = boto3.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        return [json.loads(item["Body"]) for item in received.get("Messages", [])]


@pytest.fixture
def lake(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with mock_aws():
        lake_bucket()
        sqs = boto3.client("sqs")
        made = Lake(
            *(sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("due", "announced"))
        )
        monkeypatch.setenv("FLUSH_QUEUE_URL", made.flush_queue)
        monkeypatch.setenv("ANNOUNCE_QUEUE_URL", made.announce_queue)
        yield made


def test_a_flush_writes_batches_and_announces_them(functions: Functions, lake: Lake) -> None:
    functions.http("push", "push_json")
    answer = functions.call("flush", "flush_due")

    assert answer == {"batchItemFailures": []}
    assert [key.split("/")[0] for key in lake.written()] == ["claims", "staging"]
    [announced] = lake.messages(lake.announce_queue)
    assert announced["claim"].startswith("claims/demo/todos/")


def test_a_repeated_flush_announces_nothing(functions: Functions, lake: Lake) -> None:
    functions.http("push", "push_json")
    flush = functions.load("flush")
    flush(event("flush_due"), Context())
    lake.messages(lake.announce_queue)
    flush(event("flush_due"), Context())

    assert lake.messages(lake.announce_queue) == []


def test_only_a_malformed_flush_message_is_retried(functions: Functions, lake: Lake) -> None:
    functions.http("push", "push_json")
    sent = event("flush_poison")
    answer = functions.call("flush", sent)

    assert answer == {"batchItemFailures": [{"itemIdentifier": sent["Records"][1]["messageId"]}]}
    assert len(lake.written()) == 2


def test_messages_of_a_failed_flush_are_retried(
    functions: Functions, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.http("push", "push_json")
    boto3.client("sqs").delete_queue(QueueUrl=lake.announce_queue)
    sent = event("flush_due")
    answer = functions.call("flush", sent)
    demo = [record["messageId"] for record in sent["Records"] if "demo" in record["body"]]

    assert [item["itemIdentifier"] for item in answer["batchItemFailures"]] == some(demo)


@pytest.mark.parametrize("name", ["flush_due", "flush_direct"])
def test_a_flush_stopped_by_an_internal_error_is_logged_as_an_error(
    functions: Functions,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log: io.StringIO,
    name: str,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InternalError("DynamoDB refused Query: AccessDeniedException")

    for method in ("heads", "config"):
        monkeypatch.setattr(functions.buffer, method, refused)
    functions.load("flush")(event(name), Context())
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    counted = capsys.readouterr().out

    assert {line["level"] for line in lines} == {"ERROR"}
    assert any("AccessDeniedException" in line["exception"] for line in lines)
    assert any(line["where"]["gateway"] == "demo" for line in lines)
    assert '"InternalErrors"' in counted
    assert '"FlushesFailed"' in counted


def test_a_direct_flush_returns_batches_deltas_and_watermark(
    functions: Functions, lake: Lake
) -> None:
    functions.http("push", "push_json")
    answer = functions.call("flush", "flush_direct")

    assert (answer["batches"], answer["deltas"], answer["finished"]) == (1, 3, True)
    assert int(answer["watermark"]) > 0


def test_a_direct_flush_of_one_table_leaves_the_others(functions: Functions, lake: Lake) -> None:
    functions.http("push", "push_json")
    flush = functions.load("flush")

    assert flush(event("flush_direct") | {"table": "nothing"}, Context())["batches"] == 0
    assert flush(event("flush_direct") | {"table": "todos"}, Context())["batches"] == 1


def test_a_direct_flush_without_time_says_that_it_is_not_finished(
    functions: Functions, lake: Lake
) -> None:
    functions.http("push", "push_json")
    answer = functions.call("flush", "flush_direct", 1000)

    assert answer["finished"] is False
    assert lake.written() == []


def test_a_flush_schedules_a_later_message_that_closes_open_lanes(
    functions: Functions, lake: Lake
) -> None:
    functions.http("push", "push_json")
    main = functions.buffer.heads("demo")["main"]
    opened = main.lanes.opening("main", 2)
    assert functions.buffer.change_lanes("demo", main, opened, main.commit + 1)
    writer = Writer(functions.buffer, "demo", main.config_version, main.commit + 2)
    last = writer.write("main.1", at=main.commit + 2, records=b"", count=0)
    flush = functions.load("flush")
    flush(event("flush_due"), Context())
    numbers = boto3.client("sqs").get_queue_attributes(
        QueueUrl=lake.flush_queue, AttributeNames=["ApproximateNumberOfMessagesDelayed"]
    )
    assert numbers["Attributes"]["ApproximateNumberOfMessagesDelayed"] == "1"
    assert lake.messages(lake.flush_queue) == []

    sent = event("flush_due")
    for record in sent["Records"]:
        record["body"] = close_request("demo", last.stamp)
    answer = flush(sent, Context())

    assert answer == {"batchItemFailures": []}
    assert functions.buffer.heads("demo")["main"].lanes.open() == ["main"]


def test_a_message_to_close_lanes_is_retried_when_the_store_is_unavailable(
    functions: Functions, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.http("push", "push_json")

    def away(*_: object, **__: object) -> None:
        raise Unavailable("DynamoDB is busy")

    flush = functions.load("flush")
    monkeypatch.setattr(functions.buffer, "heads", away)
    sent = event("flush_due")
    sent["Records"] = sent["Records"][:1]
    sent["Records"][0]["body"] = close_request("demo", 1)

    answer = flush(sent, Context())

    assert answer == {"batchItemFailures": [{"itemIdentifier": sent["Records"][0]["messageId"]}]}


def test_the_schedule_sends_one_message_for_each_gateway_that_is_due(
    functions: Functions, lake: Lake
) -> None:
    functions.http("push", "push_json")
    answer = functions.call("schedule_flush", "schedule_flush_tick")

    assert answer == {"due": 1, "finished": True}
    assert lake.messages(lake.flush_queue) == [{"gateway": "demo", "ifDue": True}]


def test_a_scheduled_flush_respects_the_gateways_flush_interval(
    functions: Functions, lake: Lake
) -> None:
    functions.http("push", "push_json")
    functions.http("admin", event("admin_flushing", body={"everyS": 900}))
    functions.call("schedule_flush", "schedule_flush_tick")
    sent = event("flush_due")
    [message] = lake.messages(lake.flush_queue)
    for record in sent["Records"]:
        record["body"] = json.dumps(message)
    flush = functions.load("flush")

    assert flush(sent, Context()) == {"batchItemFailures": []}
    assert lake.messages(lake.announce_queue) == []
    functions.http("admin", event("admin_flushing", body={}))
    flush(sent, Context())
    assert len(lake.messages(lake.announce_queue)) == 1


def test_a_flushed_gateway_is_not_due(functions: Functions, lake: Lake) -> None:
    functions.http("push", "push_json")
    functions.call("flush", "flush_direct")

    answer = functions.call("schedule_flush", "schedule_flush_tick")

    assert answer == {"due": 0, "finished": True}


def test_a_push_over_the_threshold_asks_for_a_flush(
    functions: Functions, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUSH_THRESHOLD_BYTES", "10")
    functions.http("push", "push_json")

    assert lake.messages(lake.flush_queue) == [{"gateway": "demo"}]


def test_a_push_is_accepted_when_the_flush_request_fails(
    functions: Functions, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUSH_THRESHOLD_BYTES", "10")
    boto3.client("sqs").delete_queue(QueueUrl=lake.flush_queue)

    assert functions.http("push", "push_json").json["accepted"] == 3
