"""A bill: what a stack uses, at a Region's prices, by service and by event; and how it is shown.

Prices are from one dated file in which each has its unit and its source: `prices.json` has those of
the Regions that we could check. Whoever is in another gives a file of the same form: `template`
makes it, and only the prices of what is on the bill need be filled in.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import date
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.cost.model import events
from lakesync.cli.faults import UsageFault
from lakesync.cli.input_output import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.cli.cost.model import Description, Event
    from lakesync.cli.cost.usage import Tenant
    from lakesync.cli.input_output import Output

# --- prices ---------------------------------------------------------------------------------------


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


# --- the bill -------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One thing on the bill."""

    service: str
    unit: str
    amount: float
    usd: float
    floor_usd: float
    """How much of it is charged in any case."""


class Bill(NamedTuple):
    """A month's bill."""

    region: str
    prices_of: str
    """The day on which the prices were read."""
    lines: tuple[Line, ...]
    events: tuple[tuple[str, float, float], ...]
    """What happens, how often, and what it costs."""

    @property
    def usd(self) -> float:
        """The total."""
        return sum(line.usd for line in self.lines)

    @property
    def floor_usd(self) -> float:
        """What is charged in any case."""
        return sum(line.floor_usd for line in self.lines)


def bill(description: Description, region: str, prices: PriceList | None = None) -> Bill:
    """Return the bill of a description.

    Args:
        description: what is priced.
        region: whose prices are taken.
        prices: from which list; LakeSync's own if left out.

    Raises:
        UsageFault: the Region's prices are not known, or not all that are needed.
    """
    from lakesync.client.backoff import HEARTBEAT_S
    from lakesync.client.transport.listener import LATER, RENEWED_S

    every = events(description, HEARTBEAT_S * (1 + LATER / 2), RENEWED_S)
    return priced(every, region, prices)


def priced(every: Iterable[Event], region: str, prices: PriceList | None = None) -> Bill:
    """Return the bill of events; what it takes and raises is as of `bill`."""
    source = prices or shipped()
    known = source.of(region)
    used = list(every)
    amounts = _amounts(used)
    if missing := {name for name, amount in amounts.items() if amount and name not in known}:
        raise UsageFault(f"{source.file} has no price in {region} of {unpriced(missing)}")
    floors = _amounts(event for event in used if event.is_floor)
    lines = [
        Line(price.service, price.unit, amount, price.usd(amount), price.usd(floors.get(name, 0)))
        for name, price in known.items()
        if (amount := amounts.get(name, 0))
    ]
    shares = _shares(amounts, known)
    happened = [(event.what, event.times, _usd(event, shares)) for event in used]
    return Bill(region, source.date, tuple(lines), tuple(happened))


def _amounts(every: Iterable[Event]) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for event in every:
        for name, each in event.each.uses.items():
            amounts[name] = amounts.get(name, 0) + event.times * each
    return amounts


def _shares(amounts: Mapping[str, float], prices: Mapping[str, Price]) -> dict[str, float]:
    """Return the price of one of each thing, on average over its tiers."""
    return {name: prices[name].usd(amount) / amount for name, amount in amounts.items() if amount}


def _usd(event: Event, shares: Mapping[str, float]) -> float:
    return sum(event.times * each * shares.get(name, 0) for name, each in event.each.uses.items())


# --- how it is shown ------------------------------------------------------------------------------


def as_json(bill: Bill, description: Description | None = None) -> dict[str, Any]:
    """Return a bill as an object, with the description that was priced."""
    given = {} if description is None else {"description": asdict(description)}
    return {
        "region": bill.region,
        "pricesOf": bill.prices_of,
        "usd": round(bill.usd, 4),
        "floorUsd": round(bill.floor_usd, 4),
        "services": [_service(line) for line in bill.lines],
        "events": [
            {"event": what, "times": round(times, 3), "usd": round(usd, 4)}
            for what, times, usd in bill.events
        ],
        **given,
    }


def _service(line: Line) -> dict[str, object]:
    return {
        "service": line.service,
        "unit": line.unit,
        "amount": round(line.amount, 4),
        "usd": round(line.usd, 4),
        "floorUsd": round(line.floor_usd, 4),
    }


def shares(bill: Bill, tenants: Sequence[Tenant]) -> list[dict[str, Any]]:
    """Return what each tenant used, and its share of what is not charged in any case.

    A tenant's share is that of the deltas that went in and out.
    """
    deltas = sum(one.deltas_in + one.deltas_out for one in tenants)
    each = (bill.usd - bill.floor_usd) / deltas if deltas else 0
    return [
        {
            "gateway": one.gateway,
            "pushes": round(one.pushes),
            "deltasIn": round(one.deltas_in),
            "deltasOut": round(one.deltas_out),
            "usd": round(each * (one.deltas_in + one.deltas_out), 4),
        }
        for one in tenants
    ]


def show(out: Output, bill: Bill) -> None:
    """Print a bill."""
    out.table(
        ("service", "what is billed", "in a month", "$", "of it in any case"),
        [
            (line.service, line.unit, amount(line.amount), usd(line.usd), usd(line.floor_usd))
            for line in bill.lines
        ],
    )
    out.table(
        ("event", "times a month", "$"),
        [(what, amount(times), usd(cost)) for what, times, cost in bill.events],
    )
    totals = ", ".join(
        f"{service} {usd(sum(line.usd for line in lines))}"
        for service, lines in groupby(bill.lines, lambda line: line.service)
    )
    out.text(f"by service: {totals}")
    out.text(
        f"${usd(bill.usd)} a month, of which ${usd(bill.floor_usd)} in any case; {bill.region}, "
        f"prices of {bill.prices_of}, on demand, without free tier"
    )


def amount(value: float) -> str:
    """Return an amount with as many digits as say something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.3g}"  # noqa: PLR2004 - three digits


def usd(value: float) -> str:
    """Return dollars, with more digits where there are only cents."""
    return f"{value:,.2f}" if value >= 0.1 or not value else f"{value:.2g}"  # noqa: PLR2004 - ten cents
