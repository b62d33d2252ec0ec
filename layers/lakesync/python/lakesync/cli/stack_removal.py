"""Deletes a whole stack: what CloudFormation would leave or stumble over first, the stack last.

CloudFormation deletes no bucket with objects in it, and knows nothing of what the product made at
run time: secrets of connectors and destinations, tables in the catalogue, the jobs' log groups. The
functions and jobs may write until they are gone, so the same is looked for again afterwards.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault
from lakesync.cli.lake_removal import purge
from lakesync.cli.stack_lake import LakeTables
from lakesync.core.plural import plural
from lakesync.errors import AdapterFailed, Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.cli.aws import Aws

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
        """Read the stack.

        Raises:
            NotFound: there is none of that name.
            UsageFault: it is not LakeSync's.
        """
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
        """Refuse a stack whose data are protected.

        Raises:
            Conflict: they are; it says by what, and how that is lifted.
        """
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
        """Delete everything.

        Raises:
            AdapterFailed: CloudFormation could not delete a resource; it is named.
            Unavailable: the deletion is still under way after an hour.
        """
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
