"""What a deleted gateway leaves in the lake and in the bucket's old versions: dropped, by who may.

The functions of the stack may not do this. It takes the operator's own credentials, with
``glue:GetTables``, ``glue:DeleteTable``, ``glue:DeleteDatabase``, ``s3:ListBucketVersions`` and
``s3:DeleteObjectVersion``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakesync.core.names import lake_database
from lakesync.errors import AdapterFailed
from lakesync.maintenance.deletion import OBJECT_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws

_DELETES_MAX: Final = 1_000
"""Objects of one request, as S3 has it."""


def remove_from_lake(aws: Aws, gateway: str) -> dict[str, int]:
    """Drop a gateway's tables with all their files, and all versions of its objects.

    Safe to repeat, and to kill: a table goes after its files.

    Returns:
        By kind, what is left.

    Raises:
        AdapterFailed: S3 refused to delete some of it.
    """
    glue, s3, bucket = aws.client("glue"), aws.client("s3"), aws.output("LakeBucket")
    database = lake_database(aws.output("DatabasePrefix"), gateway)
    for table in _tables(glue, database):
        # A view has no files.
        place = urlsplit(table.get("StorageDescriptor", {}).get("Location", ""))
        if place.netloc and place.path.strip("/"):
            _purge(s3, place.netloc, place.path.strip("/") + "/")
        glue.delete_table(DatabaseName=database, Name=table["Name"])
    if _has_database(glue, database):
        glue.delete_database(Name=database)
    prefixes = [f"{kind}/{gateway}/" for kind in OBJECT_KINDS]
    for prefix in prefixes:
        _purge(s3, bucket, prefix)
    return {
        "lake tables": len(_tables(glue, database)),
        "object versions": sum(1 for prefix in prefixes for _ in _versions(s3, bucket, prefix)),
    }


def _tables(glue: Any, database: str) -> list[dict[str, Any]]:
    if not _has_database(glue, database):
        return []
    pages = glue.get_paginator("get_tables").paginate(DatabaseName=database)
    return [table for page in pages for table in page["TableList"]]


def _has_database(glue: Any, database: str) -> bool:
    try:
        glue.get_database(Name=database)
    except glue.exceptions.EntityNotFoundException:
        return False
    return True


def _versions(s3: Any, bucket: str, prefix: str) -> Iterator[dict[str, str]]:
    """Give every version of every object under a prefix, and every marker of a deletion."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for version in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
            yield {"Key": version["Key"], "VersionId": version["VersionId"]}


def _purge(s3: Any, bucket: str, prefix: str) -> None:
    doomed = list(_versions(s3, bucket, prefix))
    for at in range(0, len(doomed), _DELETES_MAX):
        some = {"Objects": doomed[at : at + _DELETES_MAX], "Quiet": True}
        errors = s3.delete_objects(Bucket=bucket, Delete=some).get("Errors", [])
        if errors:
            raise AdapterFailed(f"S3 refused to delete {errors[0]['Key']}: {errors[0]['Code']}")
