"""Dead letters on the deployed queues, and the command that puts them back to work."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.cli.aws import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.stack import Stack

RECEIVES_MAX = 5
"""Of the flush queue, as template.yaml has it."""


@pytest.mark.usefixtures("by_hand", "flush_paused")
def test_a_message_that_fails_too_often_is_a_dead_letter_and_a_replay_puts_it_back(
    tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]
) -> None:
    sqs, queue = aws.client("sqs"), aws.output("FlushQueueUrl")
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps({"gateway": tenant.gateway}))
    for _ in range(RECEIVES_MAX + 1):
        sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=0)
    assert depth(lakesync, "flush") == {"queue": "flush", "messages": 0, "dead": 1}
    assert lakesync("replay", "flush")["moved"] == 1
    assert depth(lakesync, "flush") == {"queue": "flush", "messages": 1, "dead": 0}


@pytest.mark.usefixtures("by_hand")
def test_a_flush_that_was_given_up_is_done_after_a_replay(
    tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]
) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"a": 1})])
    given_up = json.dumps({"gateway": tenant.gateway})
    aws.client("sqs").send_message(QueueUrl=aws.output("FlushDlqUrl"), MessageBody=given_up)
    assert lakesync("replay", "flush")["moved"] == 1
    deadline = time.monotonic() + 30
    while not tenant.waiting():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert lakesync("replay", "flush")["moved"] == 0


@pytest.mark.usefixtures("by_hand")
def test_the_schedule_asks_for_a_flush_of_what_is_due(
    stack: Stack, tenant: Tenant, aws: Aws
) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"a": 1})])
    resource = aws.client("cloudformation").describe_stack_resource(
        StackName=stack.stack, LogicalResourceId="ScheduleFlushFunction"
    )
    name = resource["StackResourceDetail"]["PhysicalResourceId"]
    answer = aws.client("lambda").invoke(FunctionName=name, Payload=b"{}")
    answered = json.loads(answer["Payload"].read())

    assert "FunctionError" not in answer, answered
    assert answered["due"] >= 1
    deadline = time.monotonic() + 60
    while not tenant.waiting():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_dead_letter_is_shown_without_being_moved(aws: Aws, lakesync: Callable[..., Any]) -> None:
    sqs, dead = aws.client("sqs"), aws.output("AnnounceDlqUrl")
    sqs.send_message(QueueUrl=dead, MessageBody='{"only": "looked at"}')
    try:
        assert lakesync("replay", "announce", "--look")["body"] == '{"only": "looked at"}'
        assert depth(lakesync, "announce")["dead"] == 1
    finally:
        sqs.purge_queue(QueueUrl=dead)


def depth(lakesync: Callable[..., Any], queue: str) -> dict[str, Any]:
    """Return how many messages wait, and how many are dead."""
    queues: list[dict[str, Any]] = lakesync("status")["queues"]
    return next(one for one in queues if one["queue"] == queue)
