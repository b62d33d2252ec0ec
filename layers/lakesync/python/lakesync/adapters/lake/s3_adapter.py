"""`LakeAdapter` on S3 and stores with its protocol: MinIO, R2.

The endpoint and the addressing style select the store; the code has no branches for it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from lakesync.adapters.lake.adapter import (
    PAGE_KEYS_MAX,
    ObjectHead,
    ObjectPage,
    check_key,
    check_page,
)
from lakesync.adapters.lake.s3 import S3Objects
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    NotFound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
ATTEMPTS_MAX: Final = 4
"""How often a request that fails for a moment is made."""
_MISSING: Final = frozenset({"NoSuchKey", "404", "InvalidRange", "416"})
_REFUSED: Final = frozenset(
    {
        "AccessDenied", "403", "AllAccessDisabled", "AccountProblem", "ExpiredToken",
        "InvalidAccessKeyId", "InvalidToken", "MethodNotAllowed", "NoSuchBucket",
        "NotImplemented", "501", "SignatureDoesNotMatch",
    }
)  # fmt: skip
_THROTTLED: Final = frozenset({"SlowDown", "Throttling", "RequestLimitExceeded", "503", "429"})
# A concurrent removal: whether an object is there now is not known.
_CONFLICTS: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_TIMED_OUT: Final = _CONFLICTS | {"RequestTimeout"}
_NOT_NEW: Final = frozenset({"PreconditionFailed", "412"})


class S3Adapter(S3Objects):
    """`lakesync.adapters.lake.adapter.LakeAdapter` on one S3 bucket.

    Args:
        client: a boto3 S3 client; `s3_adapter` makes one.
    """

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        check_key(key)
        super().put_object(key, body, content_type)

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        check_key(key)
        with self._translated(key):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=body,
                    ContentType=content_type,
                    IfNoneMatch="*",
                )
            except boto.ClientError as exc:
                if _code(exc) in _NOT_NEW:
                    return False
                raise
        return True

    def head_object(self, key: str) -> ObjectHead:
        with self._translated(key):
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
        return ObjectHead(
            key, answer["ContentLength"], answer["ETag"].strip('"'), answer["LastModified"]
        )

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        check_page(keys_max)
        behind = {"StartAfter": after} if after else {}
        with self._translated(prefix):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, MaxKeys=keys_max, **behind
            )
        heads = tuple(
            ObjectHead(item["Key"], item["Size"], item["ETag"].strip('"'), item["LastModified"])
            for item in answer.get("Contents", [])
        )
        return ObjectPage(heads, bool(answer.get("IsTruncated")))

    def delete_objects(self, keys: Iterable[str]) -> None:
        left = iter(keys)
        while some := list(islice(left, PAGE_KEYS_MAX)):
            with self._translated(some[0]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": key} for key in some], "Quiet": True},
                )
                for item in answer.get("Errors", []):
                    raise boto.ClientError({"Error": item}, "DeleteObjects")

    def _translated(self, key: str) -> Any:
        return _Translated(key)


class _Translated:
    """Turns the client's errors into ours, each by what it is."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, boto.ClientError):
            code = _code(error)
            if code in _MISSING:
                raise NotFound(f"there is no object {self._key}") from error
            raise _kind(code)(f"the object store refused {self._key}: {code}") from error
        if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
            raise AdapterRefused("there are no AWS credentials for the object store") from error
        if isinstance(error, boto.ReadTimeoutError | boto.ConnectTimeoutError):
            raise AdapterTimedOut(f"the object store was too slow with {self._key}") from error
        if isinstance(error, boto.BotoCoreError):
            message = f"the object store could not be reached: {type(error).__name__}"
            raise AdapterUnreachable(message) from error


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _kind(code: str) -> type[AdapterFailed]:
    if code in _REFUSED:
        return AdapterRefused
    if code in _THROTTLED:
        return AdapterQuotaExceeded
    return AdapterTimedOut if code in _TIMED_OUT else AdapterFailed


def s3_adapter(
    bucket: str, *, endpoint: str | None = None, region: str | None = None, path_style: bool = False
) -> S3Adapter:
    """Return the adapter of a bucket; nothing is connected yet.

    Args:
        endpoint: of MinIO (``http://minio:9000``) or R2 (``https://<account>.r2.cloudflarestorage.com``);
            without one, ``AWS_ENDPOINT_URL_S3`` or AWS's own.
        region: ``auto`` for R2; without one, the environment's.
        path_style: the bucket is in the path, not in the host name, as for MinIO.
    """
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
        s3={"addressing_style": "path" if path_style else "auto"},
        # Stores other than S3 support only the checksums that an operation requires.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)
    return S3Adapter(bucket, client)
