"""What maintenance keeps: how far the log was flushed, delivered, trimmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    NamedTuple,
    Protocol,
)

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Lanes
    from lakesync.ports.entries import Head


class GatewaySlice(NamedTuple):
    """Some gateways, and where the next ones begin. One may be in several slices."""

    gateways: tuple[str, ...]
    place: str
    """Where to go on; empty once there are no more."""
    oldest: Stamp = 0
    """The oldest commit that waits behind the heads of the slice; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class FlushState:
    """How far a gateway's log has been flushed."""

    watermark: Stamp = 0
    """Everything up to here is announced."""
    until: Stamp = 0
    """The end of the range in work, recorded before its first object is written; 0 if none is.
    Whoever finds it repeats exactly that range, so a crash repeats the same objects."""


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """How it went when somebody last worked on a destination's table: for people to read."""

    mark: Stamp = 0
    """How far the table had come."""
    dead_letters: int = 0
    """Rows that the destination refused."""
    error: str = ""
    """Why it could not go on; empty if it could."""
    at_ms: int = 0
    wrote_ms: int = 0
    """When it was last written to; kept where batches are gathered, and 0 elsewhere."""


class DeliveryStates(Protocol):
    """How it goes with gateways' destinations.

    Nothing is decided by it, but for when batches that are gathered are next written.
    """

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Give what was noted of a destination, by table; under the empty name of all of it."""
        ...

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Note how it went, or with None that there is nothing to report any more."""
        ...


class FlushStates(Protocol):
    """How far gateways were flushed."""

    def flush_state(self, gateway: str) -> FlushState:
        """Give how far the gateway was flushed."""
        ...

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Move the flush state on; False if it was not as seen, and nothing was written."""
        ...

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        """Give the tables that were ever flushed, by name, each with its last commit in a batch.

        A commit is here before the watermark passes it. Whoever compares the two reads the flush
        state first, so that none is missing below the watermark.

        Args:
            gateway: whose.
            after: only tables whose names come behind this one; empty for all.
        """
        ...

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        """Set a table's last commit that was announced in a batch; never lowers it."""
        ...

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        """Set how much of a lane is flushed: the running total of its last entry to ``until``.

        For backpressure, metrics and `unflushed` only. Never lowers what is noted; safe to repeat.
        """
        ...

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Give the gateways with a head that says that something waits to be flushed.

        Idle gateways cost nothing. The one read that may lag behind: a commit, or a flush, shows in
        it after a moment.

        Args:
            place: `GatewaySlice.place` of the slice before; empty for the first.
            heads_max: heads of one slice, at the most.
        """
        ...


class ClientStates(Protocol):
    """What is remembered of single clients, in a form that is its user's own."""

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        """Give what is remembered of a client; None if nothing is."""
        ...

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        """Remember something of a client; False if it was not as seen, and nothing was written."""
        ...


class Upkeep(Protocol):
    """What is done to a gateway as a whole."""

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Give all heads that exist, whatever the main lane's says; for a restored buffer."""
        ...

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; never lowers a horizon, makes no head. Safe to repeat.

        Raises:
            lakesync.errors.Contention: a commit is moving the head; the horizon is not raised.
        """
        ...

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete what lies in the log at or below ``until``, oldest first.

        Safe to repeat, and to kill: what is left is always the end of the log.

        Returns:
            True if none is left; False after ``entries_max`` items.
        """
        ...

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries that lie in a lane's head, and move it up by one; False if it moved.

        Once it has moved, no commit can put those entries into the log that were seen in it.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read: all of its entries lie at or below the horizon.
        """
        ...

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int
    ) -> None:
        """Put an epoch that begins at ``to`` into the main lane's head, and raise it to there.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the lanes as they shall be: all but the main lane closed.
            to: above the main lane's head.
            config_version: that of the configuration in force, read after the head.

        Raises:
            HeadMoved: the lanes or the version of the configuration are not as seen, or the head
                stands at ``to`` or above.
        """
        ...
