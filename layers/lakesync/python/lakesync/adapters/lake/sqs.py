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
        except ClientError as exc:
            code = exc.response.get("Error", {}).get("Code", "")
            raise AdapterFailed(f"SQS refused a message: {code}") from exc
        except BotoCoreError as exc:
            raise AdapterFailed(f"SQS could not be reached: {type(exc).__name__}") from exc
