"""Recorded calls put to the roles of those who made them, and to the lists of what is meant."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.infrastructure.transformed import transformed
from tests.support.policies import allowed, matches
from tests.support.repository import ROOT
from tests.support.resolved import Deployed
from tests.support.roles import Granted, asked_by_aws, roles
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Asked(NamedTuple):
    role: str
    operation: str
    action: str
    resource: str
    context: dict[str, list[str]]


def deployed(cloudformation: Any, stack: str) -> Deployed:
    """Return the transformed template, with what a stack has in place of its references."""
    said = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]
    pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
    physical = {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for page in pages
        for one in page["StackResourceSummaries"]
    }
    parameters = {one["ParameterKey"]: one["ParameterValue"] for one in said["Parameters"]}
    return Deployed(transformed(), parameters, physical, said["StackId"])


def record(folder: Path) -> list[dict[str, Any]]:
    """Return what the door of the emulator of a folder wrote down; there is something."""
    return some(json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines())


def role_of(entry: dict[str, Any]) -> str:
    """Return the role of a session: ``assumed-role/Role/session``."""
    return str(entry["caller"].split("/")[1])


def unknown(every: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the calls of which it is not known what AWS asks about them."""
    return {
        (role_of(entry), entry["operation"]) for entry in every if "unknown" in entry["operation"]
    }


def asked_of_callers(every: Iterable[dict[str, Any]]) -> Iterator[Asked]:
    """Return what AWS asks about recorded calls."""
    for entry in every:
        if "action" in entry:
            role = entry["role"] or role_of(entry)
            operation, action = entry["operation"], entry["action"]
            yield Asked(role, operation, action, entry["resource"], entry["context"])


def asked_of_services(stack: Deployed) -> Iterator[Asked]:
    """Return what AWS asks about what its services do as a role."""
    for one in asked_by_aws(stack):
        context = {key: list(values) for key, values in one.context}
        yield Asked(one.role, "of AWS itself", one.action, one.resource, context)


def refused(stack: Deployed, every: Iterable[Asked]) -> list[Asked]:
    """Return what a role as transformed does not allow, except what is meant to be refused."""
    granted = roles(stack)
    meant = [
        (stack.physical.get(each["role"]), each["action"], each["resource"])
        for each in listed()["refused"]
    ]
    return [
        one
        for one in every
        if not allowed(
            [each.statement for each in granted[one.role]], one.action, one.resource, one.context
        )
        and not any(
            (one.role, one.action) == (role, action) and matches(one.resource, resource)
            for role, action, resource in meant
        )
    ]


def used(stack: Deployed, every: Iterable[Asked]) -> tuple[dict[str, Granted], set[str]]:
    """Return the template's statements by where they are, and where those that calls use are."""
    granted = roles(stack)
    statements = {one.where: one for role in granted.values() for one in role if one.ours}
    return statements, {
        each.where
        for one in every
        for each in granted[one.role]
        if each.statement.applies(one.action, one.resource, one.context)
    }


def listed() -> dict[str, Any]:
    return tomllib.loads((ROOT / "tests" / "stack" / "calls.toml").read_text())
