"""Removes what a deleted gateway leaves in the lake and in old versions in the bucket.

The stack's functions have no permission for this. It uses the operator's own credentials, with
``glue:GetTables``, ``glue:DeleteTable`` and ``glue:DeleteDatabase``, or the same in another
catalogue, and with ``s3:ListBucketVersions`` and ``s3:DeleteObjectVersion``.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakesync.cli.audited import listed
from lakesync.cli.catalogue import described, open_catalogue
from lakesync.cli.lake_shares import leave_shares
from lakesync.core.names import lake_database
from lakesync.errors import AdapterFailed
from lakesync.maintenance.deletion import OBJECT_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws

_DELETES_MAX: Final = 1_000
"""S3's maximum of objects in one request."""


def remove_from_lake(aws: Aws, gateway: str) -> dict[str, int]:
    """Drop a gateway's tables with all their files, and all versions of its objects.

    Safe to repeat, also after a crash: a table is dropped after its files.

    Returns:
        By kind, what is left.

    Raises:
        AdapterFailed: S3 refused to delete some of it.
    """
    s3, bucket = aws.client("s3"), aws.output("LakeBucket")
    leave_shares(aws, gateway)
    tables = _tables_of(aws, gateway)
    for name, location in tables.listed():
        place = urlsplit(location)
        if tables.deletes_files and place.netloc and place.path.strip("/"):
            purge(s3, place.netloc, place.path.strip("/") + "/")
        tables.drop(name)
    tables.drop_database()
    prefixes = [f"{kind}/{gateway}/" for kind in OBJECT_KINDS]
    for prefix in prefixes:
        purge(s3, bucket, prefix)
    return {
        "lake tables": len(tables.listed()),
        "object versions": sum(1 for prefix in prefixes for _ in _versions(s3, bucket, prefix)),
    }


def tables_shown(aws: Aws, gateway: str) -> dict[str, object]:
    """Return for a record which tables and views a gateway has in the lake."""
    return {"tables": listed([name for name, _ in _tables_of(aws, gateway).listed()])}


def _tables_of(aws: Aws, gateway: str) -> _GlueTables | _RestTables:
    database = lake_database(aws.output("DatabasePrefix"), gateway)
    catalogue = described(aws)
    if catalogue.is_glue:
        return _GlueTables(aws.client("glue"), database)
    return _RestTables(open_catalogue(aws), database, deletes_files=catalogue.deletes_files)


class _GlueTables:
    """A database of the Glue Data Catalog, with Athena's views in it."""

    deletes_files = True

    def __init__(self, glue: Any, database: str) -> None:
        self._glue = glue
        self._database = database

    def listed(self) -> list[tuple[str, str]]:
        """Return the tables, each with its location; a view has none."""
        if not self._exists():
            return []
        pages = self._glue.get_paginator("get_tables").paginate(DatabaseName=self._database)
        return [
            (table["Name"], table.get("StorageDescriptor", {}).get("Location", ""))
            for page in pages
            for table in page["TableList"]
        ]

    def drop(self, name: str) -> None:
        """Remove a table from the catalogue."""
        self._glue.delete_table(DatabaseName=self._database, Name=name)

    def drop_database(self) -> None:
        """Remove the empty database, if it exists."""
        if self._exists():
            self._glue.delete_database(Name=self._database)

    def _exists(self) -> bool:
        try:
            self._glue.get_database(Name=self._database)
        except self._glue.exceptions.EntityNotFoundException:
            return False
        return True


class _RestTables:
    """A namespace of a REST catalogue."""

    def __init__(self, catalogue: Any, database: str, *, deletes_files: bool) -> None:
        self._catalogue = catalogue
        self._database = database
        self.deletes_files = deletes_files

    def listed(self) -> list[tuple[str, str]]:
        """Return the tables, each with its location."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            identifiers = self._catalogue.list_tables(self._database)
        except NoSuchNamespaceError:
            return []
        return [(one[-1], self._catalogue.load_table(one).location()) for one in identifiers]

    def drop(self, name: str) -> None:
        """Remove a table; S3 Tables deletes the files itself if that is requested."""
        drop = self._catalogue.drop_table if self.deletes_files else self._catalogue.purge_table
        drop((self._database, name))

    def drop_database(self) -> None:
        """Remove the empty namespace, if it exists."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        with suppress(NoSuchNamespaceError):
            self._catalogue.drop_namespace(self._database)


def _versions(s3: Any, bucket: str, prefix: str) -> Iterator[dict[str, str]]:
    """Yield every version of every object under a prefix, and every delete marker."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for version in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
            yield {"Key": version["Key"], "VersionId": version["VersionId"]}


def purge(s3: Any, bucket: str, prefix: str) -> None:
    """Delete all versions of all objects under a prefix.

    Raises:
        AdapterFailed: S3 refused some of it.
    """
    doomed = _versions(s3, bucket, prefix)
    while versions := list(islice(doomed, _DELETES_MAX)):
        some = {"Objects": versions, "Quiet": True}
        errors = s3.delete_objects(Bucket=bucket, Delete=some).get("Errors", [])
        if errors:
            raise AdapterFailed(f"S3 refused to delete {errors[0]['Key']}: {errors[0]['Code']}")
