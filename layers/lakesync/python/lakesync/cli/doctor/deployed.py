"""The stack that is checked: CloudFormation's description, read once for all checks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws


LOCAL: Final = "local"
"""The stage of a stack on a developer's machine."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the stack."""

    logical: str
    kind: str
    physical: str


class Deployed:
    """One stack and its address. Requests are sent only when needed."""

    def __init__(self, aws: Aws, url: str | None = None) -> None:
        self.aws = aws
        self._url = url

    def client(self, service: str) -> Any:
        """Return a boto3 client."""
        return self.aws.client(service)

    @property
    def url(self) -> str:
        """The gateways' address."""
        return self._url or self.aws.output("HttpUrl")

    @property
    def now_s(self) -> float:
        """The time by this machine's clock."""
        return time.time()

    @cached_property
    def stack(self) -> dict[str, Any]:
        """The stack, as CloudFormation describes it."""
        self.aws.outputs  # noqa: B018 - says what is missing, in the command line's words
        stacks = self.client("cloudformation").describe_stacks(StackName=self.aws.stack)["Stacks"]
        stack: dict[str, Any] = stacks[0]
        return stack

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The stack's parameters."""
        return {
            item["ParameterKey"]: item.get("ResolvedValue") or item.get("ParameterValue", "")
            for item in self.stack.get("Parameters", [])
        }

    @property
    def is_local(self) -> bool:
        """Whether the stack's stage is a developer's: no quotas of AWS, nobody hears alarms."""
        return self.parameters.get("Stage") == LOCAL

    def number(self, parameter: str, default: int) -> int:
        """Return a numeric parameter; the template's default if the stack is older than it."""
        text = self.parameters.get(parameter, "")
        return int(text) if text.isdigit() else default

    def part(self, parameter: str, place: int, default: int) -> int:
        """Return one of a parameter's numbers, which have commas between, as ``number`` does."""
        parts = self.parameters.get(parameter, "").split(",")
        return int(parts[place]) if place < len(parts) and parts[place].isdigit() else default

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All resources of the stack."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources")
        return tuple(
            Resource(item["LogicalResourceId"], item["ResourceType"], item["PhysicalResourceId"])
            for page in pages.paginate(StackName=self.aws.stack)
            for item in page["StackResourceSummaries"]
            if item.get("PhysicalResourceId")
        )

    def of_kind(self, kind: str) -> Iterator[Resource]:
        """Return the resources of one type."""
        return (resource for resource in self.resources if resource.kind == kind)
