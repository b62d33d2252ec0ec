"""Messages on one SQS queue, which serves gateways fairly.

Each message names its gateway as its message group. Of a standard queue that orders nothing and
holds nothing up: SQS delivers the messages of other groups first while one group has a large share
of what is being handled, so that one gateway's backlog delays no other
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-fair-queues.html).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.core.deliveries import gateway_of_message
from lakesync.errors import AdapterFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TRIES_MAX: Final = 3
"""How often what SQS has refused out of a call is handed over."""


class SqsQueue:
    """`lakesync.ports.Queue` on SQS.

    Args:
        url: the queue's URL.
        client: a boto3 SQS client.
        delay_s: how long a sent message is delayed.
    """

    def __init__(self, url: str, client: Any, delay_s: int = 0) -> None:
        self._url = url
        self._client = client
        self._delay = {"DelaySeconds": delay_s} if delay_s else {}

    def send(self, body: str) -> None:
        """Hand a message over; when this returns it is durable."""
        with _translated():
            self._client.send_message(QueueUrl=self._url, **message_of(body), **self._delay)

    def delay(self, receipt: str, seconds: int) -> None:
        """Let a message that was received come again after so long."""
        with _translated():
            self._client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            )

    def send_all(self, bodies: Sequence[str]) -> None:
        """Send at most ten small messages in one call; when it returns, all are durable.

        Raises:
            AdapterFailed: some were refused; others may have been sent.
        """
        left = {str(number): body for number, body in enumerate(bodies)}
        codes: set[str] = set()
        for _ in range(_TRIES_MAX):
            entries = [
                {"Id": name, **message_of(body), **self._delay} for name, body in left.items()
            ]
            with _translated():
                answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            failed = answer.get("Failed", [])
            left = {refused["Id"]: left[refused["Id"]] for refused in failed}
            codes = {refused["Code"] for refused in failed}
            if not left:
                return
        reasons = ", ".join(sorted(codes))
        raise AdapterFailed(f"SQS refused {len(left)} of {len(bodies)} messages: {reasons}")


def message_of(body: str) -> dict[str, str]:
    """Return the fields with which a message is sent: its body and its gateway."""
    gateway = gateway_of_message(body)
    return {"MessageBody": body} | ({"MessageGroupId": gateway} if gateway else {})


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        raise AdapterFailed(f"SQS refused a message: {code}") from exc
    except BotoCoreError as exc:
        raise AdapterFailed(f"SQS could not be reached: {type(exc).__name__}") from exc
