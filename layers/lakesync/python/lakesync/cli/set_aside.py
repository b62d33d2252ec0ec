"""Lists the claims that the Glue job set aside because they cannot succeed, and puts them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from lakesync.cli.audited import listed
from lakesync.core.claims import CLAIMS, CLAIMS_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws


def set_aside(aws: Aws, gateway: str) -> Iterator[dict[str, str]]:
    """Yield each claim of a gateway that was set aside: its key and the reason."""
    client, bucket = aws.client("s3"), aws.output("LakeBucket")
    for claim in _names(aws, gateway):
        answer = client.head_object(Bucket=bucket, Key=CLAIMS_FAILED + claim)
        yield {"claim": claim, "reason": answer.get("Metadata", {}).get("reason", "")}


def claims_shown(aws: Aws, gateway: str) -> dict[str, object]:
    """Return which claims of a gateway are set aside, for an audit record."""
    return {"setAside": listed(list(_names(aws, gateway)))}


def _names(aws: Aws, gateway: str) -> Iterator[str]:
    pages = aws.client("s3").get_paginator("list_objects_v2")
    prefix = f"{CLAIMS_FAILED}{gateway}/"
    for page in pages.paginate(Bucket=aws.output("LakeBucket"), Prefix=prefix):
        for item in page.get("Contents", []):
            yield item["Key"].removeprefix(CLAIMS_FAILED)


def put_back(aws: Aws, claims: list[str]) -> int:
    """Put claims back and announce them; return their number. Safe to repeat."""
    client, bucket = aws.client("s3"), aws.output("LakeBucket")
    moved = 0
    for claim in claims:
        body = _body(client, bucket, CLAIMS_FAILED + claim)
        if body is None:
            continue  # another process has put it back
        # Written before the other is deleted: a claim that exists twice is applied once.
        client.put_object(
            Bucket=bucket, Key=CLAIMS + claim, Body=body, ContentType="application/json"
        )
        client.delete_object(Bucket=bucket, Key=CLAIMS_FAILED + claim)
        moved += 1
    if moved:
        url = aws.output("AnnounceQueueUrl")
        aws.client("sqs").send_message(QueueUrl=url, MessageBody='{"replayed": true}')
    return moved


def _body(client: Any, bucket: str, key: str) -> bytes | None:
    try:
        body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
            return None
        raise
    return body
