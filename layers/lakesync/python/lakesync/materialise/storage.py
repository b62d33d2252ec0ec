"""Claims and the lease as objects on S3."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.claims import CLAIMS, CLAIMS_FAILED
from lakesync.errors import AdapterFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client

VERSIONS_REMOVED_MAX: Final = 1_000
"""Versions of one request: S3's limit."""
_MISSING: Final = frozenset({"NoSuchKey", "404"})
_LOST_RACE: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


class StoredObject(NamedTuple):
    """An object as it was read."""

    body: bytes
    etag: str


class ClaimEntry(NamedTuple):
    """A claim as a listing shows it."""

    key: str
    age_s: float
    """By the clock of S3, not of this machine."""


class LakeStore:
    """The bucket of claims, staged batches and the lease."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self.now = datetime.now(UTC)
        """The time by the clock of S3, from its last answer: all runs use one clock."""

    @property
    def root(self) -> str:
        """The URL of the bucket's objects for Spark."""
        return f"s3://{self._bucket}"

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def claims(self, only: str = "") -> Iterator[ClaimEntry]:
        """List waiting claims: all, or one table's as ``gateway/table``."""
        prefix = f"{CLAIMS}{only}/" if only else CLAIMS
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            self._heard(page)
            for entry in page.get("Contents", []):
                age = self.now - entry["LastModified"]
                yield ClaimEntry(entry["Key"], age.total_seconds())

    def etags(self, prefix: str) -> dict[str, str]:
        """Return by key the etag of each object under a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}

    def read(self, key: str) -> StoredObject | None:
        """Return an object; None if there is none."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
        except self._client.exceptions.ClientError as error:
            self._heard(error.response)
            if error.response["Error"]["Code"] in _MISSING:
                return None
            raise
        self._heard(answer)
        return StoredObject(answer["Body"].read(), answer["ETag"])

    def put_if_unchanged(self, key: str, body: bytes, etag: str | None) -> str | None:
        """Write an object if it still has that etag, or does not exist if None; give the new etag.

        Returns None if another writer was first.
        """
        condition: dict[str, Any] = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        try:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, ContentType="application/json", **condition
            )
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in _LOST_RACE | _MISSING:
                return None
            raise
        self._heard(answer)
        return answer["ETag"]

    def delete(self, key: str) -> None:
        """Delete an object. Idempotent."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def old_versions(self, prefix: str) -> Iterator[dict[str, str]]:
        """Yield overwritten or deleted versions under a prefix; never a current one."""
        pages = self._client.get_paginator("list_object_versions").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            self._heard(page)
            for one in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
                if not one["IsLatest"]:
                    yield {"Key": one["Key"], "VersionId": one["VersionId"]}

    def remove_old_versions(self, prefix: str) -> int:
        """Remove them permanently; give their number. Idempotent, and safe to kill.

        Current objects stay, and so do the latest delete markers: the bucket's lifecycle removes
        them, and until then they keep hidden versions from reappearing.
        """
        return self._remove(list(self.old_versions(prefix)))

    def forget(self, key: str) -> None:
        """Remove an object permanently, with all its versions. Idempotent."""
        self.delete(key)
        self.remove_old_versions(key)

    def _remove(self, versions: list[dict[str, str]]) -> int:
        for at in range(0, len(versions), VERSIONS_REMOVED_MAX):
            some: Any = {"Objects": versions[at : at + VERSIONS_REMOVED_MAX], "Quiet": True}
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=some)
            if errors := answer.get("Errors", []):
                raise AdapterFailed(f"S3 refused to delete a version: {errors[0].get('Code')}")
        return len(versions)

    def set_aside(self, claim_key: str, body: bytes, reason: str) -> None:
        """Move a claim that can never succeed aside, with its reason. Idempotent."""
        self._client.put_object(
            Bucket=self._bucket,
            Key=CLAIMS_FAILED + claim_key.removeprefix(CLAIMS),
            Body=body,
            ContentType="application/json",
            # A header: one line of plain characters.
            Metadata={
                "reason": reason.encode("ascii", "replace").decode().replace("\n", " ")[:500]
            },
        )
        self.delete(claim_key)

    def _heard(self, answer: Any) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        self.now = parsedate_to_datetime(date) if date else datetime.now(UTC)
