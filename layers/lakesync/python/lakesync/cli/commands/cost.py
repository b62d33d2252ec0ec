"""`lakesync cost`: what a stack costs in a month, from a description or from its use."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.cost.description import AMOUNTS, CHOICES, Description, described
from lakesync.cli.cost.shown import as_json, show
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Callable

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
    hints["region"] = Annotated[str, typer.Option(help="The Region whose prices are taken.")]
    parameters.append(_option("region", _REGION))
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what `command` reads
    return function


def _option(name: str, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


@command
@_with_inputs
def cost(session: Session, **given: Any) -> None:
    """Show what a stack costs in a month of 30 days, by service, and what is charged in any case.

    On demand and without free tier, at AWS's prices of the day that the answer names. Asks nobody:
    no AWS credentials are needed.

    Example:
      lakesync cost --devices 10000 --receivers 9
      lakesync cost --devices 500 --mode polling --poll-every-s 60
      lakesync cost --devices 10000 --tenants 1000 --tables 3 --lake tables --json
    """
    from lakesync.cli.cost.bill import bill

    description = described(given)
    answer = bill(description, given["region"])
    if session.out.json_lines:
        session.out.json(as_json(answer, description))
    else:
        show(session.out, answer)
