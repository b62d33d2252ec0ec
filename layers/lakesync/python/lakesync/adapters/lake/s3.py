"""Objects in one S3 bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.errors import AdapterFailed, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator


class S3Objects:
    """`lakesync.ports.ObjectStore` on S3.

    Args:
        bucket: the bucket's name.
        client: a boto3 S3 client.
    """

    def __init__(self, bucket: str, client: Any) -> None:
        self._bucket = bucket
        self._client = client

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; storing the same again changes nothing."""
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
        """Return the keys under a prefix, in order."""
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
