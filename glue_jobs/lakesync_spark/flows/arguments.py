"""The arguments of the job that reads flows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync_spark.common.arguments import number, required

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
    names = ("gateway", "name", "machine", "region")
    given = required(argv, *names, "lease", "settings")
    return FlowArguments(
        **{name: given[name] for name in names},
        lease=number(given, "lease"),
        settings={name: str(value) for name, value in json.loads(given["settings"]).items()},
    )
