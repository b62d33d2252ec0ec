"""`lakesync cost`: what a stack costs in a month, from a description or from its use."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.cost.description import AMOUNTS, CHOICES, Description, described
from lakesync.cli.cost.floor import MONTH_DAYS
from lakesync.cli.cost.shown import as_json, shares, show
from lakesync.cli.cost.usage import DAYS_MAX
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.cli.cost.prices import PriceList

_REGION: Final = "us-east-1"
_DEFAULTS: Final = Description()


def _with_inputs(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each input of a description, with its bounds and its unit."""
    parameters = list(inspect.signature(function).parameters.values())[:1]
    hints: dict[str, Any] = dict(function.__annotations__)
    for name, amount in AMOUNTS.items():
        words = f"{amount.words} From {amount.least:g} to {amount.most:,.0f} {amount.unit}."
        hints[name] = Annotated[float, typer.Option(help=words, metavar=amount.unit.upper())]
        parameters.append(_option(name, getattr(_DEFAULTS, name)))
    for name, choice in CHOICES.items():
        metavar = "|".join(choice.options)
        hints[name] = Annotated[str, typer.Option(help=choice.words, metavar=metavar)]
        parameters.append(_option(name, getattr(_DEFAULTS, name)))
    hints["from_usage"] = Annotated[
        bool,
        typer.Option("--from-usage", help="Price what the stack used, rather than a description."),
    ]
    parameters.append(_option("from_usage", default=False))
    words = f"Of --from-usage: days to look back at, from 1 to {DAYS_MAX}."
    hints["days"] = Annotated[int, typer.Option(help=words)]
    parameters.append(_option("days", MONTH_DAYS))
    words = f"Whose prices are taken; by default {_REGION}, of --from-usage the stack's own."
    hints["region"] = Annotated[str | None, typer.Option(help=words)]
    parameters.append(_option("region", None))
    words = "A file of prices, as --print-prices makes it; by default LakeSync's own."
    hints["prices"] = Annotated[str | None, typer.Option(help=words, metavar="FILE")]
    parameters.append(_option("prices", None))
    words = "Print a file of the Region's prices to be filled in: those that are known, else null."
    hints["print_prices"] = Annotated[bool, typer.Option("--print-prices", help=words)]
    parameters.append(_option("print_prices", default=False))
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what `command` reads
    return function


def _option(name: str, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


@command
@_with_inputs
def cost(session: Session, **given: Any) -> None:
    """Show what a stack costs in a month of 30 days, by service, and what is charged in any case.

    On demand and without free tier, at AWS's prices of the day that the answer names. A description
    needs no AWS credentials. --from-usage reads the metrics of the stack in its own Region, and
    shares what they cost among tenants, if the stack's parameter Watching has the word gateways.

    Example:
      lakesync cost --devices 10000 --receivers 9
      lakesync cost --devices 500 --mode polling --poll-every-s 60
      lakesync cost --devices 10000 --tenants 1000 --tables 3 --lake small-batches --json
      lakesync cost --from-usage --days 7 --stack prod
      lakesync cost --print-prices --region eu-west-1 > prices.json
      lakesync cost --prices prices.json --region eu-west-1
    """
    from lakesync.cli.cost.bill import bill
    from lakesync.cli.cost.prices import read_prices, template

    description = described(given)
    if given["print_prices"]:
        if given["prices"] is not None or given["from_usage"]:
            raise UsageFault("--print-prices prices nothing: leave --prices and --from-usage out")
        today = datetime.now(tz=UTC).date()
        session.out.text(json.dumps(template(given["region"] or _REGION, today), indent=1))
        return
    prices = None if given["prices"] is None else read_prices(given["prices"])
    if given["from_usage"]:
        if description != _DEFAULTS:
            raise UsageFault(
                "--from-usage prices what was used: leave the description's options out"
            )
        _from_usage(session, given["days"], given["region"], prices)
        return
    answer = bill(description, given["region"] or _region_of(prices), prices)
    if session.out.json_lines:
        session.out.json(as_json(answer, description))
    else:
        show(session.out, answer)


def _region_of(prices: PriceList | None) -> str:
    """Return whose prices are taken if no Region is named: those of a file with only one."""
    given = () if prices is None else tuple(prices.regions)
    return given[0] if len(given) == 1 else _REGION


def _from_usage(session: Session, days: int, region: str | None, prices: PriceList | None) -> None:
    """Price what the stack used in the last days, as of a month, and share it among tenants."""
    from lakesync.cli.cost.bill import priced
    from lakesync.cli.cost.usage import tenants, used_events

    if not 1 <= days <= DAYS_MAX:
        raise UsageFault(f"--days is from 1 to {DAYS_MAX} days, not {days}")
    aws, now = session.aws, datetime.now(tz=UTC)
    with session.out.progress("reading metrics …"):
        answer = priced(used_events(aws, days, now), region or aws.region or _REGION, prices)
        each = shares(answer, tenants(aws, days, now))
    if session.out.json_lines:
        session.out.json(as_json(answer) | {"days": days, "tenants": each})
        return
    show(session.out, answer)
    columns = ("gateway", "pushes", "deltas in", "deltas out", "$ a month")
    none = "by tenant: no metrics of gateways; put gateways into the stack's parameter Watching"
    session.out.table(columns, [tuple(one.values()) for one in each], empty=none)
