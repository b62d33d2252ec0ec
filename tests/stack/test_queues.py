"""Dead letters on the deployed queues, and the command that puts them back to work.

The queues are the whole stack's: other tests' gateways and the schedule send messages of their own
at any time. So what is counted is the test's own messages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op
from tests.support.waiting import answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.stack import Stack

RECEIVED_AT_ONCE_MAX = 10


def test_replay_with_look_shows_a_dead_letter_without_moving_it(
    aws: Aws, lakesync: Callable[..., Any]
) -> None:
    sqs, dead = aws.client("sqs"), aws.output("AnnounceDlqUrl")
    body = '{"only": "looked at"}'
    sqs.send_message(QueueUrl=dead, MessageBody=body)
    try:
        shown = lakesync("replay", "announce", "--look")["body"]
        assert shown in bodies(aws, "AnnounceDlqUrl")
        assert bodies(aws, "AnnounceDlqUrl").count(body) == 1
        assert depth(lakesync, "announce")["dead"] >= 1
    finally:
        take_out(aws, "AnnounceDlqUrl", body)


@pytest.mark.usefixtures("by_hand", "flush_paused")
def test_message_that_fails_too_often_becomes_a_dead_letter_and_replay_requeues_it(
    tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]
) -> None:
    sqs, queue = aws.client("sqs"), aws.output("FlushQueueUrl")
    body = json.dumps({"gateway": tenant.gateway})
    sqs.send_message(QueueUrl=queue, MessageBody=body)

    def fail_once() -> list[int]:
        """Let all that waits fail once more; returns how often ours waits, and is dead."""
        for _ in range(1 + waiting(aws, "FlushQueueUrl") // RECEIVED_AT_ONCE_MAX):
            sqs.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=RECEIVED_AT_ONCE_MAX, VisibilityTimeout=0
            )
        return ours(aws, body)

    answered(fail_once, lambda counts: counts == [0, 1], every_s=0)
    assert depth(lakesync, "flush")["dead"] >= 1
    assert lakesync("replay", "flush")["moved"] >= 1
    assert ours(aws, body) == [1, 0]
    assert depth(lakesync, "flush")["messages"] >= 1


@pytest.mark.usefixtures("by_hand")
def test_replayed_flush_message_is_processed(
    tenant: Tenant, aws: Aws, lakesync: Callable[..., Any]
) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"a": 1})])
    given_up = json.dumps({"gateway": tenant.gateway})
    aws.client("sqs").send_message(QueueUrl=aws.output("FlushDlqUrl"), MessageBody=given_up)
    assert lakesync("replay", "flush")["moved"] >= 1
    answered(tenant.waiting, bool)
    assert given_up not in bodies(aws, "FlushDlqUrl")


@pytest.mark.usefixtures("by_hand")
def test_scheduler_requests_a_flush_of_due_gateways(stack: Stack, tenant: Tenant, aws: Aws) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"a": 1})])
    resource = aws.client("cloudformation").describe_stack_resource(
        StackName=stack.stack, LogicalResourceId="ScheduleFlushFunction"
    )
    name = resource["StackResourceDetail"]["PhysicalResourceId"]
    answer = aws.client("lambda").invoke(FunctionName=name, Payload=b"{}")
    answered_with = json.loads(answer["Payload"].read())

    assert "FunctionError" not in answer, answered_with
    assert answered_with["due"] >= 1
    answered(tenant.waiting, bool)


def depth(lakesync: Callable[..., Any], queue: str) -> dict[str, Any]:
    """Return how many messages wait, and how many are dead."""
    queues: list[dict[str, Any]] = lakesync("status")["queues"]
    return next(one for one in queues if one["queue"] == queue)


def ours(aws: Aws, body: str) -> list[int]:
    """Return how often a message waits to be flushed, and how often it is dead."""
    return [bodies(aws, queue).count(body) for queue in ("FlushQueueUrl", "FlushDlqUrl")]


def waiting(aws: Aws, queue: str) -> int:
    """Return how many messages a queue holds."""
    name = "ApproximateNumberOfMessages"
    answer = aws.client("sqs").get_queue_attributes(
        QueueUrl=aws.output(queue), AttributeNames=[name]
    )
    return int(answer["Attributes"][name])


def bodies(aws: Aws, queue: str) -> list[str]:
    return [message["Body"] for message in messages(aws, queue)]


def messages(aws: Aws, queue: str) -> list[dict[str, Any]]:
    """Receive all that waits in a queue once, and let it wait on."""
    sqs, url = aws.client("sqs"), aws.output(queue)
    taken: list[dict[str, Any]] = []
    while some := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=RECEIVED_AT_ONCE_MAX, VisibilityTimeout=60,
    ).get("Messages"):  # fmt: skip
        taken += some
    for message in taken:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    return taken


def take_out(aws: Aws, queue: str, body: str) -> None:
    """Remove a message, and leave those of others."""
    for message in messages(aws, queue):
        if message["Body"] == body:
            aws.client("sqs").delete_message(
                QueueUrl=aws.output(queue), ReceiptHandle=message["ReceiptHandle"]
            )
