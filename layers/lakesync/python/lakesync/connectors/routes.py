"""From where to where a poll moves rows: a connector's into its gateway, a flow's as it declares.

A flow is registered as a connector of the type `FLOW` (`lakesync.core.flows`); how it is carried
out is said by whoever knows flows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.definition import Definition
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push, PushReceipt


def _nothing() -> None:
    """Close nothing."""


class Route(NamedTuple):
    """What one poll reads, and what becomes of it."""

    connector: Connector
    tables: Mapping[str, str]
    """The source's tables in the order in which they are read, each with its name here."""
    push: Callable[[Push], PushReceipt]
    """Makes deltas durable; raises `lakesync.errors.LakeSyncError`."""
    shape: Callable[[Sequence[Delta]], Sequence[Delta]] = list
    """Gives what of a page's deltas goes on."""
    pages: int = 1
    """Usual pages that are read, and pushed, at a time: more where each write is dear."""
    close: Callable[[], None] = _nothing
    """Closes the destination."""
    large_rows: int = 0
    """From how many rows ahead on a table is read by a job; 0 for never."""
    job_rows: int = 0
    """Rows that a job writes at a time, all by one writer; 0 where its tasks write side by side."""
    fence: Callable[[str], object] = lambda _: None
    """Makes sure that nothing of before is written any more to a table, by its name here: by a
    writer that died, whose last statement may be under way. Raises `LakeSyncError`."""
    read_whole: Callable[[str], object] = lambda _: None
    """Notes that a table, by its name here, was read to its end, and all of it is durable."""


class MakesRoutes(Protocol):
    """Knows how flows are carried out."""

    def elsewhere(self, definition: Definition) -> str:
        """Return where something is polled (`lakesync.core.flows.Flow.place`); empty if here."""
        ...

    def route(self, gateway: str, name: str, definition: Definition, storage: Storage) -> Route:
        """Return the route of a flow.

        Raises:
            LakeSyncError: its source or its destination cannot be made.
        """
        ...
