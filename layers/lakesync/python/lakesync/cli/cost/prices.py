"""AWS's prices, from one dated file: `prices.json`, in which each has its unit and its source."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = Path(__file__).with_name("prices.json")


class Price(NamedTuple):
    """The price of one thing in one Region."""

    service: str
    unit: str
    tiers: tuple[tuple[float, float], ...]
    """Up to how much in a month, and the price of one; the last has no end."""
    source: str

    def usd(self, amount: float) -> float:
        """Return what so much costs in a month."""
        total = begun = 0.0
        for up_to, each in self.tiers:
            total += max(min(amount, up_to) - begun, 0.0) * each
            begun = up_to
        return total


def regions() -> list[str]:
    """Return the Regions whose prices are known."""
    return sorted(_file()["regions"])


def date() -> str:
    """Return the day on which the prices were read."""
    return str(_file()["date"])


def prices_of(region: str) -> Mapping[str, Price]:
    """Return a Region's prices by their names.

    Raises:
        UsageFault: none are known.
    """
    known = _file()["regions"]
    if region not in known:
        others = ", ".join(sorted(known))
        raise UsageFault(
            f"the prices of {region[:30]!r} are not known, only those of {others}: pass --region "
            f"{min(known)}, or add your Region's with their sources to {FILE.name}"
        )
    return {name: _price(entry) for name, entry in known[region].items()}


def _price(entry: Mapping[str, Any]) -> Price:
    per = entry["per"]
    tiers = entry.get("tiers") or [{"price": entry["price"]}]
    steps = tuple((float(one.get("up_to", "inf")), one["price"] / per) for one in tiers)
    return Price(entry["service"], entry["unit"], steps, entry["source"])


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return content
