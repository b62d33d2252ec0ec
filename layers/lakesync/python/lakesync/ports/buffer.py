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
    """The durable buffer of all gateways: all of the above. Whoever needs less asks for less.

    Every read is strongly consistent, item by item: it shows each commit that was answered before,
    but of one that is just happening it may show one item and not yet another. Any method may raise
    `lakesync.errors.Unavailable` (or a subclass) when the store throttles or cannot be reached; it
    is then safe to repeat.
    """


class GatewayItems(Protocol):
    """All that is stored of a gateway, but for objects: its buffer, its clients, its quota."""

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        """Count what is stored of a gateway, by kind; 0 is exact, of many it gives some.

        What a deleted gateway leaves for ever does not count: see `remove`.

        Args:
            gateway: whose.
            tables: its tables.
        """
        ...

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        """Remove all that `count` counts, of a gateway whose configuration says it is deleted.

        What stays, so that nothing can be made of it anew: the configuration, the heads without
        entries, and the revocation of the gateway itself. Safe to repeat, and to kill.

        Args:
            gateway: whose.
            tables: its tables.
            has_time: asked before each few removals; False ends it there.

        Returns:
            True if nothing is left.
        """
        ...
