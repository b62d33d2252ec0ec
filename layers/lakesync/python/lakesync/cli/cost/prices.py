"""AWS's prices, from one dated file in which each has its unit and its source.

`prices.json` has those of the Regions that we could check. Whoever is in another gives a file of
the same form: `template` makes it, and only the prices of what is on the bill need be filled in.
"""

from __future__ import annotations

import math
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE: Final = Path(__file__).with_name("prices.json")
CURRENCY: Final = "USD"


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


class PriceList(NamedTuple):
    """Prices by Region, as they were read on one day."""

    file: str
    date: str
    regions: Mapping[str, Mapping[str, Price]]

    def of(self, region: str) -> Mapping[str, Price]:
        """Return a Region's prices by their names.

        Raises:
            UsageFault: none are known.
        """
        if region in self.regions:
            return self.regions[region]
        others = ", ".join(sorted(self.regions))
        shown = region[:30]
        raise UsageFault(
            f"the prices of {shown!r} are not known, only those of {others}: run lakesync cost "
            f"--print-prices --region {shown} > prices.json, fill it in from the pages that it "
            "names, and pass --prices prices.json"
        )


@cache
def shipped() -> PriceList:
    """Return the prices that LakeSync comes with."""
    return read_prices(str(FILE))


def read_prices(file: str) -> PriceList:
    """Return the prices of a file; ``-`` is standard input.

    A price that is null, of all tiers, is not known; it is left out.

    Raises:
        UsageFault: the file has another form; says where.
        OSError: it cannot be read.
    """
    content = _object(read_json(file), file, "")
    if content.get("currency") != CURRENCY:
        raise UsageFault(f'{file}: currency must be "{CURRENCY}", as the bill is in dollars')
    regions = {
        region: {
            name: price
            for name, entry in _object(entries, file, f"regions.{region}").items()
            if (price := _price(entry, file, f"regions.{region}.{name}")) is not None
        }
        for region, entries in _object(content.get("regions"), file, "regions").items()
    }
    if not regions:
        raise UsageFault(f"{file}: regions has none")
    return PriceList(file, _day(content.get("date"), file), regions)


def template(region: str, today: date) -> dict[str, Any]:
    """Return the content of a file of a Region's prices: those that are known, null for others."""
    content: Any = read_json(str(FILE))
    known = content["regions"].get(region)
    entries = known or {
        name: _without_price(entry)
        for name, entry in next(iter(content["regions"].values())).items()
    }
    day = content["date"] if known else today.isoformat()
    return {"date": day, "currency": CURRENCY, "regions": {region: entries}}


def unpriced(names: Iterable[str]) -> str:
    """Return what things without a price are, for a refusal."""
    known = shipped().regions
    prices = next(iter(known.values()))
    return "; ".join(
        f"{name} ({prices[name].service}, {prices[name].unit}; {prices[name].source})"
        for name in sorted(names)
    )


def _without_price(entry: Mapping[str, Any]) -> dict[str, Any]:
    tiers = [{**tier, "price": None} for tier in entry.get("tiers", ())]
    return {**entry, "price": None, **({"tiers": tiers} if tiers else {})}


def _price(given: object, file: str, place: str) -> Price | None:
    """Return a price; None if it is not known."""
    entry = _object(given, file, place)
    tiers = entry.get("tiers")
    if tiers is None:
        tiers = [{"price": entry.get("price")}]
    if not isinstance(tiers, list) or not tiers:
        raise UsageFault(f"{file}: {place}.tiers must be a list of tiers")
    steps = [_object(tier, file, f"{place}.tiers") for tier in tiers]
    if all(step.get("price") is None for step in steps):
        return None
    per = _number(entry.get("per"), file, f"{place}.per")
    if not per:
        raise UsageFault(f"{file}: {place}.per is 0: it is for how many units the price is")
    ends = [_number(step.get("up_to"), file, f"{place}.tiers.up_to") for step in steps[:-1]]
    if ends != sorted(set(ends)) or "up_to" in steps[-1]:
        raise UsageFault(
            f"{file}: {place}.tiers must follow each other by up_to, the last has none"
        )
    each = [_number(step.get("price"), file, f"{place}.price") / per for step in steps]
    texts = [entry.get(name) for name in ("service", "unit", "source")]
    for name, text in zip(("service", "unit", "source"), texts, strict=True):
        if not isinstance(text, str) or not text:
            raise UsageFault(f"{file}: {place}.{name} must be a text")
    service, unit, source = map(str, texts)
    return Price(service, unit, tuple(zip([*ends, math.inf], each, strict=True)), source)


def _number(value: object, file: str, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageFault(f"{file}: {place} must be a number, 0 or more, not {value!r:.40}")
    return float(value)


def _object(value: object, file: str, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageFault(f"{file}: {place or 'the file'} must be an object")
    return value


def _day(value: object, file: str) -> str:
    try:
        return date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise UsageFault(
            f"{file}: date must be the day on which the prices were read, as 2026-11-20"
        ) from None
