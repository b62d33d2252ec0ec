"""Removes what a deleted gateway leaves behind, and whole stacks with all that is theirs.

CloudFormation deletes no bucket with objects in it, and knows nothing of what the product made at
run time: secrets of connectors and destinations, tables in the catalogue, the jobs' log groups. The
functions and jobs may write until they are gone, so the same is looked for again afterwards.

The stack's functions have no permission for this. It uses the operator's own credentials, with
``glue:GetTables``, ``glue:DeleteTable`` and ``glue:DeleteDatabase``, or the same in another
catalogue, and with ``s3:ListBucketVersions`` and ``s3:DeleteObjectVersion``.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakesync.cli.input_output import UsageFault
from lakesync.cli.lake import described, open_catalogue
from lakesync.cli.session import listed
from lakesync.cli.shared_lake import leave_shares
from lakesync.core.names import lake_database
from lakesync.core.wording import plural
from lakesync.errors import AdapterFailed, Conflict, Unavailable
from lakesync.maintenance.erasure import OBJECT_KINDS
from lakesync.materialise.lake_schema import STACK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lakesync.cli.connection import Aws

# --- a gateway in the lake ------------------------------------------------------------------------


_DELETES_MAX: Final = 1_000
"""S3's maximum of objects in one request."""


def remove_from_lake(aws: Aws, gateway: str) -> dict[str, int]:
    """Drop a gateway's tables with all their files, and all versions of its objects.

    Safe to repeat, also after a crash: a table is dropped after its files. Return what is left.
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
    doomed = _versions(s3, bucket, prefix)
    while versions := list(islice(doomed, _DELETES_MAX)):
        some = {"Objects": versions, "Quiet": True}
        errors = s3.delete_objects(Bucket=bucket, Delete=some).get("Errors", [])
        if errors:
            raise AdapterFailed(f"S3 refused to delete {errors[0]['Key']}: {errors[0]['Code']}")


# --- all tables of a stack ------------------------------------------------------------------------


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


# --- a stack --------------------------------------------------------------------------------------


PROTECTED_STAGE: Final = "prod"
SECRET_KINDS: Final = ("actions", "connectors", "destinations")
"""What follows the stack's name in the names of secrets that the product or its users made."""
_BUCKET: Final = "AWS::S3::Bucket"
_NESTED: Final = "AWS::CloudFormation::Stack"
_TABLE: Final = "AWS::DynamoDB::Table"
_ACCOUNT_KINDS: Final = ("AWS::ApiGateway::Account",)
_RETAINED: Final = "DELETE_SKIPPED"
_ROUNDS_MAX: Final = 3
"""How often a bucket is emptied again because something wrote to it meanwhile."""
_POLL_S: Final = 5
_POLLS_MAX: Final = 720
"""An hour: a distribution of CloudFront alone takes a quarter of one."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What goes with a stack, and what stays."""

    resources: int
    buckets: tuple[str, ...]
    secrets: tuple[str, ...]
    tables: tuple[str, ...]
    log_groups: tuple[str, ...]
    kept: tuple[str, ...] = field(default=())

    def lines(self) -> Iterator[str]:
        """Yield what goes, and then what stays, for people."""
        yield f"{plural(self.resources, 'resource')} of the stack"
        yield from (f"bucket {name}, with every version of its objects" for name in self.buckets)
        yield from (f"secret {name}" for name in self.secrets)
        yield from (f"lake table {name}" for name in self.tables)
        yield from (f"log group {name}" for name in self.log_groups)
        yield from (f"stays: {what}" for what in self.kept)


class StackRemoval:
    """The deletion of one stack. Safe to repeat after any interruption: the stack goes last."""

    def __init__(self, aws: Aws, sleep: Callable[[float], None] = time.sleep) -> None:
        self._aws = aws
        self._sleep = sleep
        self._formation = aws.client("cloudformation")
        self._id = aws.stack_id
        self._stack = self._described()
        if "BufferTable" not in aws.outputs and not self._failed():
            raise UsageFault(
                f"the stack {aws.stack} is not LakeSync's: it has no output BufferTable"
            )
        listed = tuple(self._listed(self._id))
        self._retained = tuple(each for each in listed if each["ResourceStatus"] == _RETAINED)
        self._resources = tuple(each for each in listed if each not in self._retained)
        self._lake = LakeTables(aws, self._buckets) if "DatabasePrefix" in aws.outputs else None

    def must_be_unprotected(self) -> None:
        name, parameters = self._aws.stack, self._parameters()
        if self._failed():
            return  # it was never whole, and holds nothing; nor could it be deployed otherwise
        if parameters.get("Stage", PROTECTED_STAGE) == PROTECTED_STAGE:
            raise Conflict(
                f"the stack {name} keeps its data, since its Stage is {PROTECTED_STAGE}: if they "
                "are to go, deploy it with Stage=ephemeral first "
                "(docs/operations.md § Deleting a stack)"
            )
        if self._stack.get("EnableTerminationProtection"):
            raise Conflict(
                f"the stack {name} has termination protection: lift it with `aws cloudformation "
                f"update-termination-protection --no-enable-termination-protection --stack-name "
                f"{name}`"
            )
        dynamo = self._aws.client("dynamodb")
        for table in self._physical(_TABLE):
            try:
                described = dynamo.describe_table(TableName=table)["Table"]
            except dynamo.exceptions.ResourceNotFoundException:
                continue
            if described.get("DeletionProtectionEnabled"):
                raise Conflict(
                    f"the table {table} has deletion protection: lift it with `aws dynamodb "
                    f"update-table --no-deletion-protection-enabled --table-name {table}`"
                )

    def inventory(self) -> Inventory:
        """Return what goes and what stays; nothing is changed."""
        return Inventory(
            resources=len(self._resources),
            buckets=self._buckets,
            secrets=tuple(self._secrets()),
            tables=tuple(self._lake.names()) if self._lake else (),
            log_groups=tuple(self._log_groups()),
            kept=tuple(self._kept()),
        )

    def remove(self, progress: Callable[[str], None]) -> None:
        """Delete everything, or raise what CloudFormation could not delete."""
        failures: list[tuple[str, str]] = []
        for _ in range(_ROUNDS_MAX):
            progress("deleting secrets, lake tables and log groups …")
            self._remove_around()
            for bucket in self._buckets:
                progress(f"emptying {bucket} …")
                self._empty(bucket)
            progress(f"deleting the stack {self._aws.stack} …")
            failures = self._delete_stack()
            if not failures:
                self._remove_around()
                return
            if not all(kind == _BUCKET for kind, _ in failures):
                break
        raise AdapterFailed(
            f"CloudFormation could not delete {'; '.join(what for _, what in failures)}: mend that "
            "and repeat the command"
        )

    def _remove_around(self) -> None:
        secrets = self._aws.client("secretsmanager")
        for name in list(self._secrets()):
            secrets.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
        if self._lake:
            self._lake.drop()
        logs = self._aws.client("logs")
        for name in list(self._log_groups()):
            logs.delete_log_group(logGroupName=name)

    def _empty(self, bucket: str) -> None:
        s3 = self._aws.client("s3")
        try:
            purge(s3, bucket, "")
        except s3.exceptions.NoSuchBucket:
            return  # an interrupted deletion got as far as this

    def _delete_stack(self) -> list[tuple[str, str]]:
        """Delete the stack, wait, and return what could not be deleted: types and sentences."""
        self._formation.delete_stack(StackName=self._id)
        for _ in range(_POLLS_MAX):
            status = self._status()
            if status == "DELETE_COMPLETE":
                return []
            if status == "DELETE_FAILED":
                return [
                    (item["ResourceType"], _sentence(item))
                    for item in self._listed(self._id)
                    if item["ResourceStatus"] == "DELETE_FAILED"
                ]
            self._sleep(_POLL_S)
        raise Unavailable(f"the stack {self._aws.stack} is still being deleted; look again later")

    def _status(self) -> str:
        try:
            return str(self._described()["StackStatus"])
        except self._formation.exceptions.ClientError as exc:
            if "does not exist" in str(exc):
                return "DELETE_COMPLETE"
            raise

    def _failed(self) -> bool:
        """Return whether the first deployment failed, so that there never was any data."""
        return str(self._stack["StackStatus"]) in {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED"}

    def _described(self) -> dict[str, Any]:
        stack: dict[str, Any] = self._formation.describe_stacks(StackName=self._id)["Stacks"][0]
        return stack

    def _parameters(self) -> dict[str, str]:
        listed = self._stack.get("Parameters", [])
        return {each["ParameterKey"]: each.get("ParameterValue", "") for each in listed}

    def _listed(self, stack: str) -> Iterator[dict[str, Any]]:
        """Yield the resources that were made, those of nested stacks too."""
        pages = self._formation.get_paginator("list_stack_resources").paginate(StackName=stack)
        for page in pages:
            for item in page["StackResourceSummaries"]:
                if item["ResourceStatus"] == "DELETE_COMPLETE" or not item.get(
                    "PhysicalResourceId"
                ):
                    continue
                yield item
                if item["ResourceType"] == _NESTED:
                    yield from self._listed(item["PhysicalResourceId"])

    def _physical(self, kind: str) -> tuple[str, ...]:
        every = (each for each in self._resources if each["ResourceType"] == kind)
        return tuple(each["PhysicalResourceId"] for each in every)

    @property
    def _buckets(self) -> tuple[str, ...]:
        return self._physical(_BUCKET)

    def _secrets(self) -> Iterator[str]:
        """Yield the names of secrets under the stack's name; its own secret is a resource."""
        starts = tuple(f"{self._aws.stack}/{kind}/" for kind in SECRET_KINDS)
        pages = self._aws.client("secretsmanager").get_paginator("list_secrets")
        # The filter compares beginnings of words, regardless of case.
        filters = [{"Key": "name", "Values": list(starts)}]
        for page in pages.paginate(Filters=filters):
            names = (each["Name"] for each in page["SecretList"])
            yield from (name for name in names if name.startswith(starts))

    def _log_groups(self) -> Iterator[str]:
        """Yield the groups that the jobs made; those of functions are resources."""
        pages = self._aws.client("logs").get_paginator("describe_log_groups")
        for page in pages.paginate(logGroupNamePrefix=f"/aws-glue/{self._aws.stack}/"):
            yield from (group["logGroupName"] for group in page["logGroups"])

    def _kept(self) -> Iterator[str]:
        for item in self._retained:
            kind, name = item["ResourceType"], item["PhysicalResourceId"]
            yield f"{kind} {name}, which a rollback left, empty"
        if any(self._physical(kind) for kind in _ACCOUNT_KINDS):
            yield "the account's log role of API Gateway, which other APIs may use by now"
        if restored := self._parameters().get("BufferTableName"):
            yield f"the table {restored}, which was restored from a backup and is not of the stack"
        if self._lake:
            yield from self._lake.foreign()


def _sentence(item: dict[str, Any]) -> str:
    reason = item.get("ResourceStatusReason", "no reason given")
    return f"{item['LogicalResourceId']} ({item['ResourceType']}: {reason})"
