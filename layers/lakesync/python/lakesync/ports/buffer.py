"""The buffer: everything that one store provides together."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Protocol,
)

from lakesync.ports.commit_log import CommitLog
from lakesync.ports.configuration import Configurations, DestinationStore
from lakesync.ports.rows import Rows
from lakesync.ports.upkeep import ClientStates, DeliveryStates, FlushStates, Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Buffer(
    CommitLog,
    Rows,
    Configurations,
    DestinationStore,
    DeliveryStates,
    FlushStates,
    ClientStates,
    Upkeep,
    Protocol,
):
    """The durable buffer of all gateways: all of the above. A user that needs less asks for less.

    Every read is strongly consistent, item by item: it shows each commit that was acknowledged
    before. Of a commit in progress it may show one item and not yet another. Any method may raise
    `lakesync.errors.Unavailable` (or a subclass) when the store throttles or cannot be reached;
    repeating it is then safe.
    """


class GatewayItems(Protocol):
    """All that is stored of a gateway, except objects: its buffer, its clients, its quota."""

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        """Count what is stored of a gateway, by kind; 0 is exact, a large number is a lower bound.

        What a deleted gateway leaves permanently does not count: see `remove`.

        Args:
            gateway: whose.
            tables: its tables.
        """
        ...

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        """Remove all that `count` counts, of a gateway whose configuration says it is deleted.

        The configuration, the heads without entries, and the revocation of the gateway itself stay,
        so that it cannot be created again. Idempotent, and safe to kill.

        Args:
            gateway: whose.
            tables: its tables.
            has_time: called before every few removals; False ends the call there.

        Returns:
            True if nothing is left.
        """
        ...
