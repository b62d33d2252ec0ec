"""All tables of a stack in the catalogue, whichever gateway's they are."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakesync.cli.catalogue import described, open_catalogue
from lakesync.cli.lake_removal import purge
from lakesync.materialise.shape import STACK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lakesync.cli.aws import Aws

_OWN_PREFIX: Final = "lakesync_"
"""The beginning of the prefix that a stack makes of its own id."""


class LakeTables:
    """The tables and views of one stack. Another stack may have been given the same prefix."""

    def __init__(self, aws: Aws, buckets: Collection[str]) -> None:
        """Prepare the work.

        Args:
            aws: the stack.
            buckets: its buckets: what lies in them is its own.
        """
        self._prefix = aws.output("DatabasePrefix")
        is_glue = described(aws).is_glue
        self._tables: _Glue | _Rest = _Glue(aws, buckets) if is_glue else _Rest(aws)

    def names(self) -> list[str]:
        """Return the stack's tables, as ``database.table``."""
        return [f"{database}.{table}" for database, table, own in self._every() if own]

    def foreign(self) -> Iterator[str]:
        """Yield for people what is named like this stack's tables and is not its own."""
        for database, table, own in self._every():
            if not own:
                yield f"the lake table {database}.{table}, which is not of this stack"

    def drop(self) -> None:
        """Drop the tables, and databases that are empty then. Safe to repeat.

        An empty database under a prefix that somebody chose is dropped only if a table was.
        """
        for database in list(self._databases()):
            listed = list(self._tables.tables(database))
            for table, own in listed:
                if own:
                    self._tables.drop(database, table)
            emptied = all(own for _, own in listed)
            if emptied and (listed or self._prefix.startswith(_OWN_PREFIX)):
                self._tables.drop_database(database)

    def _every(self) -> Iterator[tuple[str, str, bool]]:
        for database in self._databases():
            for table, own in self._tables.tables(database):
                yield database, table, own

    def _databases(self) -> Iterator[str]:
        return (name for name in self._tables.databases() if name.startswith(f"{self._prefix}_"))


class _Glue:
    """The Glue Data Catalog, with Athena's views in it."""

    def __init__(self, aws: Aws, buckets: Collection[str]) -> None:
        self._glue = aws.client("glue")
        self._stack_id = aws.stack_id
        self._places = tuple(f"s3://{bucket}/" for bucket in buckets)

    def databases(self) -> Iterator[str]:
        """Yield the names of all databases."""
        for page in self._glue.get_paginator("get_databases").paginate():
            yield from (database["Name"] for database in page["DatabaseList"])

    def tables(self, database: str) -> Iterator[tuple[str, bool]]:
        """Yield each table, and whether it is the stack's: files in its bucket, or its view."""
        for page in self._glue.get_paginator("get_tables").paginate(DatabaseName=database):
            for table in page["TableList"]:
                location = table.get("StorageDescriptor", {}).get("Location", "")
                marked = table.get("Parameters", {}).get(STACK) == self._stack_id
                yield table["Name"], marked or location.startswith(self._places)

    def drop(self, database: str, table: str) -> None:
        """Remove a table from the catalogue; its files go with the bucket."""
        try:
            self._glue.delete_table(DatabaseName=database, Name=table)
        except self._glue.exceptions.EntityNotFoundException:
            return

    def drop_database(self, database: str) -> None:
        """Remove an empty database."""
        try:
            self._glue.delete_database(Name=database)
        except self._glue.exceptions.EntityNotFoundException:
            return


class _Rest:
    """A REST catalogue. Tables may lie in a bucket that is not the stack's, and go with files."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._stack_id = aws.stack_id
        self._deletes_files = described(aws).deletes_files

    @cached_property
    def _catalogue(self) -> Any:
        return open_catalogue(self._aws)

    def databases(self) -> Iterator[str]:
        """Yield the names of all namespaces."""
        return (namespace[-1] for namespace in self._catalogue.list_namespaces())

    def tables(self, database: str) -> Iterator[tuple[str, bool]]:
        """Yield each table, and whether it is the stack's by its own properties."""
        for identifier in self._catalogue.list_tables(database):
            properties = self._catalogue.load_table(identifier).properties
            yield identifier[-1], properties.get(STACK) == self._stack_id

    def drop(self, database: str, table: str) -> None:
        """Remove a table with its files."""
        if not self._deletes_files:
            self._catalogue.purge_table((database, table))
            return
        place = urlsplit(self._catalogue.load_table((database, table)).location())
        if place.netloc and place.path.strip("/"):
            purge(self._aws.client("s3"), place.netloc, place.path.strip("/") + "/")
        self._catalogue.drop_table((database, table))

    def drop_database(self, database: str) -> None:
        """Remove an empty namespace."""
        self._catalogue.drop_namespace(database)
