"""The buffer: everything that one store provides together.

Besides the log and its rows, it keeps what was declared for a gateway (rules, schemas,
destinations), and the state of maintenance: how far the log was flushed, delivered, trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lakesync.ports.commit_log import CommitLog, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destinations
    from lakesync.core.layout import Lanes
    from lakesync.ports.commit_log import Head

# --- what was declared ----------------------------------------------------------------------------


class Configurations(Protocol):
    """What is declared of gateways."""

    def config(self, gateway: str) -> GatewayConfig:
        """Return the configuration in force; version 0 if nothing was ever declared."""
        ...

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        """Put a configuration in force and its version into the main lane's head, atomically.

        Args:
            gateway: whose.
            config: the configuration.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the new lanes: all but the main lane closed.
            to: the new commit of the main lane's head, above the present one.
            epoch: what the main lane's head gets if it was seen without an epoch.

        Raises:
            HeadMoved: the lanes are not as seen, or the head is at ``to`` or above.
            ConfigMoved: the version in force is not ``config.version - 1``.
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...

    def gateways(self) -> list[str]:
        """Return every gateway that was ever written to."""
        ...


class DestinationStore(Protocol):
    """What is declared of gateways' destinations."""

    def destinations(self, gateway: str) -> Destinations:
        """Return the declarations; version 0 if there never were any."""
        ...

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        """Put a document in force; False, and nothing written, if its predecessor is not in force.

        Raises:
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...


# --- the state of maintenance ---------------------------------------------------------------------


class GatewaySlice(NamedTuple):
    """Some gateways, and where the next ones begin. A gateway may be in several slices."""

    gateways: tuple[str, ...]
    place: str
    """Where to continue; empty at the end."""
    oldest: Stamp = 0
    """The oldest unflushed commit behind the heads of the slice; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class FlushState:
    """How far a gateway's log has been flushed."""

    watermark: Stamp = 0
    """Everything up to here is announced."""
    until: Stamp = 0
    """The end of the range in progress, recorded before its first object is written; 0 if there is
    none. Any flush that finds it repeats exactly that range, so a crash repeats the same objects.
    """


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """The result of the last work on a destination's table, for people to read."""

    mark: Stamp = 0
    """The commit up to which the table was delivered."""
    dead_letters: int = 0
    """Rows that the destination refused."""
    error: str = ""
    """Why the work stopped; empty if it succeeded."""
    at_ms: int = 0
    wrote_ms: int = 0
    """When it was last written to, where batches are gathered; 0 elsewhere."""
    archived: Stamp = 0
    """The commit up to which the history is in the destination's archive; 0 without one."""


class DeliveryStates(Protocol):
    """The state of deliveries to gateways' destinations.

    Only one decision uses it: when gathered batches are next written.
    """

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Return the state of a destination, by table; the empty name stands for all of it."""
        ...

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Store the state; with None there is nothing to report any more."""
        ...


class FlushStates(Protocol):
    """How far gateways were flushed."""

    def flush_state(self, gateway: str) -> FlushState:
        """Return how far the gateway was flushed."""
        ...

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Advance the flush state; False, and nothing written, if it was not as seen."""
        ...

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        """Return the tables that were ever flushed, by name, each with its last commit in a batch.

        A commit is recorded here before the watermark passes it. To compare the two, read the flush
        state first, so that none is missing below the watermark.

        Args:
            gateway: whose.
            after: only tables with names behind this one; empty for all.
        """
        ...

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        """Set a table's last commit that was announced in a batch; never lowers it."""
        ...

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        """Set how much of a lane is flushed: the running total of its last entry to ``until``.

        For backpressure, metrics and `unflushed` only. Never lowers the value; idempotent.
        """
        ...

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Return the gateways with a head that shows unflushed entries.

        Idle gateways cost nothing. This is the only read that may lag behind: it shows a commit or
        a flush after a moment.

        Args:
            place: `GatewaySlice.place` of the slice before; empty for the first.
            heads_max: the most heads of one slice.
        """
        ...


class ClientStates(Protocol):
    """The stored state of single clients, in a form that its user defines."""

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        """Return the stored state of a client; None if there is none."""
        ...

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        """Store the state of a client; False, and nothing written, if it was not as seen."""
        ...


class Upkeep(Protocol):
    """Maintenance of a gateway as a whole."""

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Return all existing heads, whatever the main lane's head lists; for a restored buffer."""
        ...

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; never lowers a horizon, makes no head. Safe to repeat.

        Raises:
            lakesync.errors.Contention: a commit is moving the head; the horizon is not raised.
        """
        ...

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete the log's items at or below ``until``, oldest first.

        Idempotent, and safe to kill: what is left is always the end of the log.

        Returns:
            True if none is left; False after ``entries_max`` items.
        """
        ...

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries in a lane's head, and move it up by one; False if it moved.

        After it has moved, no commit can put the entries that were seen in it into the log.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read: all of its entries are at or below the horizon.
        """
        ...

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int,
        epoch: str,
    ) -> None:  # fmt: skip
        """Put an epoch that begins at ``to`` into the main lane's head, and raise it to there.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the new lanes: all but the main lane closed.
            to: above the main lane's head.
            config_version: that of the configuration in force, read after the head.
            epoch: its name; empty for a gateway that never had a commit.

        Raises:
            HeadMoved: the lanes or the version of the configuration are not as seen, or the head is
                at ``to`` or above.
        """
        ...


# --- all of it together ---------------------------------------------------------------------------


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
