"""Open connections, and how frames are sent to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp

CONNECTION_S_MAX: Final = 7_500
"""How long a connection is remembered: API Gateway ends each after two hours."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One open WebSocket of a client."""

    gateway: str
    id: str
    """As API Gateway names it."""
    client_id: str
    user: str
    expires_s: float
    """When its token expires, in seconds since 1970; after that it is not served."""
    opened_ms: int
    claims: Mapping[str, Any]
    """The claims of the token, by which sync rules decide."""
    scope: str = ""
    """A digest of the scope in force when the connection was last examined."""
    rules: str = ""
    """A digest of the rules that gave the scope."""
    window: int = 0
    """The span of time for which its frames were last summed."""
    frames: int = 0
    """The number of frames in it."""


@dataclass(frozen=True, slots=True)
class NotifyState:
    """How far the connections of a gateway have been notified."""

    notified: Stamp = 0
    """All commits up to here were broadcast; 0 if none ever was."""
    wanted: Stamp = 0
    """A commit that was left to the process in charge."""
    place: str = ""
    """Time ran out behind this connection: those with greater ids lack what was sent up to
    `notified`. "" if all were sent to."""


class Connections(Protocol):
    """The open WebSockets, and how far those of each gateway have been notified.

    Reads are strongly consistent. At most one process at a time notifies a gateway. A process that
    finds another in charge leaves its commit to that one, and no commit is lost between the two.
    """

    def add(self, connection: Connection) -> None:
        """Store a connection, or its changes."""
        ...

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection; None if it is not stored."""
        ...

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection, unless the connection was removed in the meantime."""
        ...

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames that all processes accepted of a connection in a span of time.

        Returns:
            False if nothing was added: the connection is gone, or was read before another process
            began the span. After reading it again the frames may be added.
        """
        ...

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection. Idempotent."""
        ...

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway, and how far they have been notified."""
        ...

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Return some connections of all gateways from a place on, and the next place, or ""."""
        ...

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies; False if another is in charge.

        Args:
            gateway: whose.
            owner: the caller: the same name may begin again what it began before.
            now_ms: the time, at which another's turn may have ended.
            until_ms: when the turn ends unless it is ended before.
        """
        ...

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge; False if there is none any more."""
        ...

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues; commits that were left stay.

        After another process took over the turn, this changes nothing.
        """
        ...

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn.

        Returns:
            False if a later commit was left in the meantime: then the turn continues.
        """
        ...


class Tickets(Protocol):
    """Tickets that open one WebSocket each, known by their digests alone."""

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        """Store what a ticket is good for.

        Args:
            digest: of the ticket, which itself is not stored.
            claims: those of the token that requested it, plain JSON.
            until_ms: when it expires.
        """
        ...

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        """Return a ticket's claims, to one caller only; None if it is unknown, used or expired.

        The ticket is used even if the answer is lost: not idempotent.
        """
        ...


class Delivered(Enum):
    """The result of sending a frame to a connection."""

    SENT = "sent"
    GONE = "gone"
    """The connection is closed."""
    BUSY = "busy"
    """Its reader is slow, or the account is throttled."""


class Sockets(Protocol):
    """The other side of the open WebSockets. Thread-safe."""

    def send(self, connection_id: str, frame: str) -> Delivered:
        """Send a text frame.

        Raises:
            lakesync.errors.Unavailable: it is not known whether it was sent.
        """
        ...

    def close(self, connection_id: str) -> None:
        """Close a connection. Safe to repeat."""
        ...
