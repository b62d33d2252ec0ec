"""Objects in one S3 bucket: read and written here, or by whoever holds an address signed here.

The signature of an address covers what S3 must check of an attachment: the holder of an upload
address can send only bytes with that SHA-256 and that length, and only while no object has the key.

One SQS queue serves gateways fairly. Each message names its gateway as its message group. Of a
standard queue that orders nothing and holds nothing up: SQS delivers the messages of other groups
first while one group has a large share of what is being handled, so that one gateway's backlog
delays no other
(https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-fair-queues.html).
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.core.deliveries import gateway_of_message
from lakesync.errors import AdapterFailed, NotFound
from lakesync.ports import SignedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeVar

    T = TypeVar("T")


class S3Objects:
    """`lakesync.ports.ObjectStore` on S3."""

    def __init__(self, bucket: str, client: Any) -> None:
        self._bucket = bucket
        self._client = client

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        with self._translated(key):
            self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, ContentType=content_type
            )

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            NotFound: there is none.
        """
        with self._translated(key):
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            return body

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of an object from an offset, fewer if it ends before.

        Raises:
            NotFound: there is no such object, or it ends before the offset.
        """
        span = f"bytes={start}-{start + size - 1}"
        with self._translated(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=span)
            body: bytes = answer["Body"].read()
            return body

    def list_objects(self, prefix: str) -> list[str]:
        with self._translated(prefix):
            return list(self._pages(prefix))

    def _translated(self, key: str) -> Any:
        return _Translated(key)

    def _pages(self, prefix: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", []))

    def delete_object(self, key: str) -> None:
        """Remove an object; removing it again changes nothing."""
        with self._translated(key):
            self._client.delete_object(Bucket=self._bucket, Key=key)


class _Translated:
    """Turns S3's exceptions into ours, once, where they enter."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            if code in {"NoSuchKey", "404", "InvalidRange", "416"}:
                raise NotFound(f"there is no object {self._key}") from error
            raise AdapterFailed(f"S3 refused {self._key}: {code}") from error
        if isinstance(error, BotoCoreError):
            raise AdapterFailed(f"S3 could not be reached: {type(error).__name__}") from error


# --- by signed addresses --------------------------------------------------------------------------


URL_S_MAX: Final = 900
"""How long a signed address may be used."""
_NOTHING_YET: Final = "*"
_BYTES: Final = "application/octet-stream"
_THERE_ALREADY: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_UPLOAD: Final = frozenset({"NoSuchUpload", "404"})


class S3SignedObjects:
    """`lakesync.ports.SignedObjects` on S3.

    Args:
        client: a boto3 S3 client that signs by version 4, for the bucket's own region.
        url_s: how long a signed address may be used.
    """

    def __init__(self, bucket: str, client: Any, *, url_s: int = URL_S_MAX) -> None:
        self._bucket = bucket
        self._client = client
        self._url_s = url_s

    def size_of(self, key: str) -> int | None:
        # Not HEAD: without permission to list the bucket, it answers 403 for a missing object.
        answer = self._asked(
            key, lambda: self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
        )
        sizes = [int(item["Size"]) for item in answer.get("Contents", []) if item["Key"] == key]
        return sizes[0] if sizes else None

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        checksum = _base64(digest)
        fields = {"ContentLength": size_bytes, "ChecksumSHA256": checksum, "ContentType": _BYTES}
        url = self._sign("put_object", Key=key, IfNoneMatch=_NOTHING_YET, **fields)
        headers = {"if-none-match": _NOTHING_YET, "content-type": _BYTES}
        return SignedRequest(url, headers | _of_content(size_bytes, checksum))

    def begin_upload(self, key: str) -> str:
        answer = self._asked(
            key,
            lambda: self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, ContentType=_BYTES, ChecksumAlgorithm="SHA256"
            ),
        )
        return str(answer["UploadId"])

    def parts(self, key: str, upload: str) -> Mapping[int, str] | None:
        try:
            # A page has 1,000 parts, which is more than a file has.
            answer = self._client.list_parts(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as exc:
            if _code(exc) in _NO_UPLOAD:
                return None
            raise _refused(key, exc) from exc
        except BotoCoreError as exc:
            raise _away(exc) from exc
        return {int(part["PartNumber"]): str(part["ETag"]) for part in answer.get("Parts", [])}

    def sign_part(
        self, key: str, upload: str, number: int, size_bytes: int, digest: str
    ) -> SignedRequest:
        checksum = _base64(digest)
        place = {"UploadId": upload, "PartNumber": number}
        content = {"ContentLength": size_bytes, "ChecksumSHA256": checksum}
        url = self._sign("upload_part", Key=key, **place, **content)
        return SignedRequest(url, _of_content(size_bytes, checksum), number)

    def end_upload(
        self, key: str, upload: str, tags: Mapping[int, str], digests: Sequence[str]
    ) -> None:
        parts = [
            {"PartNumber": number, "ETag": tags[number], "ChecksumSHA256": _base64(digest)}
            for number, digest in enumerate(digests, 1)
        ]
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=upload, IfNoneMatch=_NOTHING_YET,
                MultipartUpload={"Parts": parts},
            )  # fmt: skip
        except ClientError as exc:
            # Another request was first, maybe for this same upload: then the object is there.
            if _code(exc) not in _THERE_ALREADY | _NO_UPLOAD:
                raise _refused(key, exc) from exc
        except BotoCoreError as exc:
            raise _away(exc) from exc

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        """Sign the request that reads an object.

        A browser saves it instead of displaying it: a page in it could otherwise run in the
        bucket's origin.
        """
        url = self._sign(
            "get_object",
            Key=key,
            ResponseContentType=media_type,
            ResponseContentDisposition="attachment",
        )
        return SignedRequest(url, {})

    def _sign(self, operation: str, **fields: Any) -> str:
        sign, params = self._client.generate_presigned_url, {"Bucket": self._bucket, **fields}
        url: str = self._asked(
            str(fields["Key"]), lambda: sign(operation, Params=params, ExpiresIn=self._url_s)
        )
        return url

    def _asked(self, key: str, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except ClientError as exc:
            raise _refused(key, exc) from exc
        except BotoCoreError as exc:
            raise _away(exc) from exc


def _of_content(size_bytes: int, checksum: str) -> dict[str, str]:
    return {"content-length": str(size_bytes), "x-amz-checksum-sha256": checksum}


def _base64(digest: str) -> str:
    return b64encode(bytes.fromhex(digest)).decode()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _refused(key: str, error: ClientError) -> AdapterFailed:
    return AdapterFailed(f"S3 refused {key}: {_code(error)}")


def _away(error: BotoCoreError) -> AdapterFailed:
    return AdapterFailed(f"S3 could not be reached: {type(error).__name__}")


# --- SQS ------------------------------------------------------------------------------------------


_TRIES_MAX: Final = 3
"""How often what SQS has refused out of a call is handed over."""


class SqsQueue:
    """`lakesync.ports.Queue` on SQS.

    Args:
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
