"""What the operator of a stack lets connectors and action handlers use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Outside(NamedTuple):
    """What the operator of the stack lets connectors and action handlers use."""

    hosts: tuple[str, ...] = ()
    """Where HTTP requests may go; see `lakesync.connectors.addresses`."""
    aws: Callable[[str], Any] | None = None
    """Gives the client of an AWS service; an action's client does not retry."""


NOTHING_ALLOWED: Final = Outside()
"""No host, no service."""
