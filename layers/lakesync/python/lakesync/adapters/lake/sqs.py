"""Messages on one SQS queue."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.errors import AdapterFailed


class SqsQueue:
    """`lakesync.ports.Queue` on SQS.

    Args:
        url: the queue's URL.
        client: a boto3 SQS client.
    """

    def __init__(self, url: str, client: Any) -> None:
        self._url = url
        self._client = client

    def send(self, body: str) -> None:
        """Hand a message over; when this returns it is durable."""
        try:
            self._client.send_message(QueueUrl=self._url, MessageBody=body)
        except (BotoCoreError, ClientError) as exc:
            raise AdapterFailed(f"SQS did not take a message: {type(exc).__name__}") from exc
