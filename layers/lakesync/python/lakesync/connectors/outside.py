"""The operator's restrictions of what connectors and action handlers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Asks = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
    """Passes a question on (`lakesync.connectors.asked_source`); None if no answer came in time."""

NO_ANSWER: Final = "the function that reaches databases did not answer in time; try again"
"""Said of a question that was passed on, for want of an answer."""


class Outside(NamedTuple):
    """The hosts and other means that the operator allows."""

    hosts: tuple[str, ...] = ()
    """Where HTTP requests may go; see `lakesync.connectors.addresses`."""
    aws: Callable[[str], Any] | None = None
    """Gives the client of an AWS service; an action's client does not retry."""
    databases: tuple[str, ...] = ()
    """Which databases' hosts may be reached that are not public; see `lakesync.adapters.hosts`."""
    metrics: tuple[str, ...] = ()
    """Of which namespaces of CloudWatch metrics may be read; ``*`` for all."""
    asks: Asks | None = None
    """Asks sources that are databases, where this process cannot reach them; None if it can."""


NOTHING_ALLOWED: Final = Outside()
"""No host, no service."""
