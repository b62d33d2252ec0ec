"""How a bill is shown: as tables for people, as one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.cost.bill import Bill, Line
    from lakesync.cli.cost.description import Description
    from lakesync.cli.cost.usage import Tenant
    from lakesync.cli.output import Output


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
