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
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from lakesync.analysis.connection import UsageFault, paged, stack_resources
from lakesync.analysis.lake import described, open_catalogue
from lakesync.analysis.shared_lake import leave_shares
from lakesync.cli.session import listed
from lakesync.core.names import lake_database
from lakesync.core.wording import plural
from lakesync.errors import AdapterFailed, Conflict, Unavailable
from lakesync.maintenance.erasure import OBJECT_KINDS
from lakesync.materialise.lake_schema import STACK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lakesync.analysis.connection import Aws

# --- the catalogue --------------------------------------------------------------------------------


_DELETES_MAX: Final = 1_000
"""S3's maximum of objects in one request."""


class _Table(NamedTuple):
    """A table or view of the catalogue."""

    name: str
    location: str
    """Empty for a view."""
    stack: str
    """The stack that it is marked with."""


class _Glue:
    """The Glue Data Catalog, with Athena's views in it."""

    deletes_files = True

    def __init__(self, aws: Aws) -> None:
        self._glue = aws.client("glue")
        self._unknown = self._glue.exceptions.EntityNotFoundException

    def databases(self) -> Iterator[str]:
        return (database["Name"] for database in paged(self._glue, "get_databases", "DatabaseList"))

    def tables(self, database: str) -> list[_Table]:
        """Return the tables and views of a database; none if it does not exist."""
        tables = []
        with suppress(self._unknown):
            for table in paged(self._glue, "get_tables", "TableList", DatabaseName=database):
                location = table.get("StorageDescriptor", {}).get("Location", "")
                stack = table.get("Parameters", {}).get(STACK, "")
                tables.append(_Table(table["Name"], location, stack))
        return tables

    def drop(self, database: str, table: str) -> None:
        with suppress(self._unknown):
            self._glue.delete_table(DatabaseName=database, Name=table)

    def drop_database(self, database: str) -> None:
        with suppress(self._unknown):
            self._glue.delete_database(Name=database)


class _Rest:
    """A REST catalogue. S3 Tables deletes files itself, if that is requested."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self.deletes_files = described(aws).deletes_files

    @cached_property
    def _catalogue(self) -> Any:
        return open_catalogue(self._aws)

    def databases(self) -> Iterator[str]:
        return (namespace[-1] for namespace in self._catalogue.list_namespaces())

    def tables(self, database: str) -> list[_Table]:
        """Return the tables of a namespace; none if it does not exist."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        tables = []
        with suppress(NoSuchNamespaceError):
            for identifier in self._catalogue.list_tables(database):
                table = self._catalogue.load_table(identifier)
                stack = table.properties.get(STACK, "")
                tables.append(_Table(identifier[-1], table.location(), stack))
        return tables

    def drop(self, database: str, table: str) -> None:
        drop = self._catalogue.drop_table if self.deletes_files else self._catalogue.purge_table
        drop((database, table))

    def drop_database(self, database: str) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError

        with suppress(NoSuchNamespaceError):
            self._catalogue.drop_namespace(database)


def _catalogue_of(aws: Aws) -> _Glue | _Rest:
    return _Glue(aws) if described(aws).is_glue else _Rest(aws)


def _drop_with_files(aws: Aws, catalogue: _Glue | _Rest, database: str, table: _Table) -> None:
    """Drop a table after its files, so that an interrupted removal finds it again."""
    place = urlsplit(table.location)
    if catalogue.deletes_files and place.netloc and place.path.strip("/"):
        purge(aws.client("s3"), place.netloc, place.path.strip("/") + "/")
    catalogue.drop(database, table.name)


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


# --- a gateway in the lake ------------------------------------------------------------------------


def remove_from_lake(aws: Aws, gateway: str) -> dict[str, int]:
    """Drop a gateway's tables with all their files, and all versions of its objects.

    Safe to repeat, also after a crash: a table is dropped after its files. Return what is left.
    """
    s3, bucket = aws.client("s3"), aws.output("LakeBucket")
    leave_shares(aws, gateway)
    catalogue, database = _catalogue_of(aws), _database_of(aws, gateway)
    for table in catalogue.tables(database):
        _drop_with_files(aws, catalogue, database, table)
    catalogue.drop_database(database)
    prefixes = [f"{kind}/{gateway}/" for kind in OBJECT_KINDS]
    for prefix in prefixes:
        purge(s3, bucket, prefix)
    return {
        "lake tables": len(catalogue.tables(database)),
        "object versions": sum(1 for prefix in prefixes for _ in _versions(s3, bucket, prefix)),
    }


def tables_shown(aws: Aws, gateway: str) -> dict[str, object]:
    """Return for a record which tables and views a gateway has in the lake."""
    tables = _catalogue_of(aws).tables(_database_of(aws, gateway))
    return {"tables": listed([table.name for table in tables])}


def _database_of(aws: Aws, gateway: str) -> str:
    return lake_database(aws.output("DatabasePrefix"), gateway)


# --- all tables of a stack ------------------------------------------------------------------------


_OWN_PREFIX: Final = "lakesync_"
"""The beginning of the prefix that a stack makes of its own id."""


class LakeTables:
    """The tables and views of one stack. Another stack may have been given the same prefix."""

    def __init__(self, aws: Aws, buckets: Collection[str]) -> None:
        """Prepare the work; what lies in the stack's buckets is its own, by Glue's catalogue."""
        self._aws = aws
        self._prefix = aws.output("DatabasePrefix")
        self._is_glue = described(aws).is_glue
        self._places = tuple(f"s3://{bucket}/" for bucket in buckets) if self._is_glue else ()
        self._catalogue = _catalogue_of(aws)

    def names(self) -> list[str]:
        return [f"{database}.{table.name}" for database, table in self._every() if self._own(table)]

    def foreign(self) -> Iterator[str]:
        """Yield for people what is named like this stack's tables and is not its own."""
        for database, table in self._every():
            if not self._own(table):
                yield f"the lake table {database}.{table.name}, which is not of this stack"

    def drop(self) -> None:
        """Drop the tables, and databases that are empty then. Safe to repeat.

        An empty database under a prefix that somebody chose is dropped only if a table was.
        """
        for database in list(self._databases()):
            tables = self._catalogue.tables(database)
            own = [table for table in tables if self._own(table)]
            for table in own:
                if self._is_glue:  # its files go with the bucket
                    self._catalogue.drop(database, table.name)
                else:
                    _drop_with_files(self._aws, self._catalogue, database, table)
            if own == tables and (own or self._prefix.startswith(_OWN_PREFIX)):
                self._catalogue.drop_database(database)

    def _own(self, table: _Table) -> bool:
        return table.stack == self._aws.stack_id or table.location.startswith(self._places)

    def _every(self) -> Iterator[tuple[str, _Table]]:
        for database in self._databases():
            for table in self._catalogue.tables(database):
                yield database, table

    def _databases(self) -> Iterator[str]:
        names = self._catalogue.databases()
        return (name for name in names if name.startswith(f"{self._prefix}_"))


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
        for item in stack_resources(self._formation, stack):
            if item["ResourceStatus"] != "DELETE_COMPLETE":
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
        """Return the names of secrets under the stack's name; its own secret is a resource."""
        starts = tuple(f"{self._aws.stack}/{kind}/" for kind in SECRET_KINDS)
        client = self._aws.client("secretsmanager")
        # The filter compares beginnings of words, regardless of case.
        filters = [{"Key": "name", "Values": list(starts)}]
        names = (
            one["Name"] for one in paged(client, "list_secrets", "SecretList", Filters=filters)
        )
        return (name for name in names if name.startswith(starts))

    def _log_groups(self) -> Iterator[str]:
        """Return the groups that the jobs made; those of functions are resources."""
        named = {"logGroupNamePrefix": f"/aws-glue/{self._aws.stack}/"}
        groups = paged(self._aws.client("logs"), "describe_log_groups", "logGroups", **named)
        return (group["logGroupName"] for group in groups)

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
