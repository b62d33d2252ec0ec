"""The arguments of the job that reads flows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.errors import ValidationFailed
from lakesync_spark.common.arguments import required

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class FlowArguments:
    """What a run works on that reads a flow."""

    gateway: str
    name: str
    """The flow's."""
    lease: int
    """By which its poll was handed over."""
    machine: str
    """The ARN of the state machine that polls."""
    region: str
    settings: dict[str, str]
    """The environment of the function that polls."""


def parse_flow_arguments(argv: Sequence[str]) -> FlowArguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing, or is not what it must be.
    """
    given = required(argv, "gateway", "name", "lease", "machine", "region", "settings")
    if not given["lease"].isdecimal():
        raise ValidationFailed("--lease is a number", field="--lease")
    settings = json.loads(given["settings"])
    return FlowArguments(
        gateway=given["gateway"],
        name=given["name"],
        lease=int(given["lease"]),
        machine=given["machine"],
        region=given["region"],
        settings={name: str(value) for name, value in settings.items()},
    )
