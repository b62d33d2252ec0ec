"""A bill: what a description uses, at a Region's prices, by service and by event."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.cli.cost.model import events
from lakesync.cli.cost.prices import shipped, unpriced
from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.cli.cost.description import Description
    from lakesync.cli.cost.model import Event
    from lakesync.cli.cost.prices import Price, PriceList


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
