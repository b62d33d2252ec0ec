"""The description of a stack that is to be priced: each input with its bounds and its unit."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Mapping


class Amount(NamedTuple):
    """An input that is a number."""

    least: float
    most: float
    unit: str
    words: str


class Choice(NamedTuple):
    """An input that is one of some words."""

    options: tuple[str, ...]
    words: str


AMOUNTS: Final[Mapping[str, Amount]] = {
    "devices": Amount(0, 10_000_000, "devices", "Devices in use, of all tenants together."),
    "tenants": Amount(0, 1_000_000, "gateways", "Gateways; 0: one for every ten devices."),
    "edits_per_hour": Amount(0, 3_600, "edits an hour", "Edits of one device in a busy hour."),
    "edits_per_push": Amount(1, 1_000, "edits", "Edits that one push takes along."),
    "hours_per_day": Amount(0, 24, "hours", "Busy hours of a day."),
    "receivers": Amount(
        -1, 100_000, "devices", "Devices that are sent each edit; -1: all others of the gateway."
    ),
    "poll_every_s": Amount(1, 86_400, "seconds", "Of polling: how often each device asks."),
    "tables": Amount(1, 1_000, "tables", "Tables of each gateway."),
    "row_bytes": Amount(1, 300_000, "bytes", "Bytes of one row."),
    "rows": Amount(0, 10_000_000_000, "rows", "Rows of all gateways; 0: one for each device."),
    "destinations": Amount(0, 50, "databases", "Databases that each gateway is delivered to."),
    "lake_every_minutes": Amount(2, 300, "minutes", "How often what waits is flushed."),
    "zones": Amount(1, 6, "zones", "Availability zones with a way to private databases."),
}
CHOICES: Final[Mapping[str, Choice]] = {
    "mode": Choice(
        ("real-time", "polling"),
        "How devices hear of edits: over WebSockets that are always open, or by asking.",
    ),
    "lake": Choice(
        ("none", "small-batches", "glue-runs"),
        "The lake: none, written by functions (the default of a stack), or by Glue alone, as where "
        "JobBounds begins with 0.",
    ),
    "private": Choice(
        ("none", "endpoints", "nat"),
        "The way from private databases' subnets to AWS: interface endpoints or NAT gateways.",
    ),
    "watching": Choice(("basic", "detailed"), "The stack's parameter Watching."),
    "alarm_encryption": Choice(
        ("none", "own-key"), "Whether the stack's parameter Watching has own-key."
    ),
    "tracing": Choice(("off", "on"), "Whether X-Ray samples requests: one a second, then 5 %."),
}
DEVICES_OF_A_GATEWAY: Final = 10
"""Where neither tenants nor receivers are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is to be priced; the defaults are a small team in real time, without a lake."""

    devices: float = 100
    tenants: float = 0
    edits_per_hour: float = 12
    edits_per_push: float = 1
    hours_per_day: float = 8
    receivers: float = -1
    mode: str = "real-time"
    poll_every_s: float = 30
    tables: float = 1
    row_bytes: float = 300
    rows: float = 0
    destinations: float = 0
    lake: str = "none"
    lake_every_minutes: float = 15
    private: str = "none"
    zones: float = 2
    watching: str = "basic"
    alarm_encryption: str = "none"
    tracing: str = "off"

    @property
    def gateways(self) -> float:
        """The gateways that have devices, at least one if there is a device."""
        return self.tenants or math.ceil(self.devices / DEVICES_OF_A_GATEWAY)

    @property
    def reached(self) -> float:
        """Devices that are sent each edit."""
        if self.receivers >= 0:
            return self.receivers
        return max(self.devices / self.gateways - 1, 0) if self.gateways else 0

    @property
    def stored_rows(self) -> float:
        """Rows of all gateways."""
        return self.rows or self.devices


def described(given: Mapping[str, Any]) -> Description:
    """Return the description with these inputs, the others as by default.

    Raises:
        UsageFault: an input is out of its bounds, or they contradict each other.
    """
    known = {field.name for field in fields(Description)}
    values = {name: value for name, value in given.items() if value is not None and name in known}
    for name, value in values.items():
        if name in AMOUNTS:
            _check_amount(name, value, AMOUNTS[name])
        elif value not in CHOICES[name].options:
            options = " or ".join(CHOICES[name].options)
            raise UsageFault(f"{option(name)} {str(value)[:30]!r} is none: use {options}")
    description = Description(**values)
    if description.reached > max(description.devices - 1, 0):
        raise UsageFault(
            f"--receivers {description.reached:g} is more than the other devices there are: "
            f"{max(description.devices - 1, 0):g}"
        )
    if description.tenants > max(description.devices, 1) and description.edits_per_hour:
        raise UsageFault(
            f"--tenants {description.tenants:g} is more than --devices {description.devices:g}: "
            "each gateway that is edited has a device"
        )
    return description


def option(name: str) -> str:
    """Return how an input is written on the command line."""
    return f"--{name.replace('_', '-')}"


def _check_amount(name: str, value: float, amount: Amount) -> None:
    if not math.isfinite(value) or not amount.least <= value <= amount.most:
        raise UsageFault(
            f"{option(name)} is from {amount.least:,g} to {amount.most:,g} {amount.unit}, "
            f"not {value:g}".replace(f"{amount.most:,g}", f"{amount.most:,.0f}")
        )
