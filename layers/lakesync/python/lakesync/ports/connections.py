"""Who is connected, and how they are sent something."""

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
    """When its token expires, in seconds since 1970; it is not served any longer."""
    opened_ms: int
    claims: Mapping[str, Any]
    """Those of the token, by which sync rules decide."""
    scope: str = ""
    """A digest of the scope that decided, when the connection was last looked at."""
    rules: str = ""
    """A digest of the rules that gave the scope."""
    window: int = 0
    """The span of time in which its frames were last summed."""
    frames: int = 0
    """How many frames were summed in it."""


@dataclass(frozen=True, slots=True)
class NotifyState:
    """How far the connections of a gateway have been notified."""

    notified: Stamp = 0
    """Broadcasts were made of all commits up to here; 0 if none ever was."""
    wanted: Stamp = 0
    """A commit that was left to whoever was at work."""
    place: str = ""
    """Time was over behind this connection: those with greater ids lack what was sent up to
    `notified`. "" if all were sent to."""


class Connections(Protocol):
    """The open WebSockets, and how far those of each gateway have been notified.

    Reads are strongly consistent. Of a gateway at most one process notifies at a time: who finds
    another at work leaves its commit to that one, and nothing is left undone between the two.
    """

    def add(self, connection: Connection) -> None:
        """Remember a connection, or what has changed of it."""
        ...

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Give a connection; None if it is not remembered."""
        ...

    def rescope(self, connection: Connection) -> None:
        """Remember the scope of a connection, unless it is gone meanwhile."""
        ...

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames that all processes took of a connection in a span of time.

        Returns:
            False if nothing was added: the connection is gone, or was read before another process
            began the span. Whoever reads it again may add them then.
        """
        ...

    def remove(self, gateway: str, connection_id: str) -> None:
        """Forget a connection. Safe to repeat."""
        ...

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Give all connections of a gateway, and how far they have been notified."""
        ...

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Give some connections of all gateways from a place on, and the next place, or ""."""
        ...

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the one who notifies; False if another is at work.

        Args:
            gateway: whose.
            owner: who asks: the same name may begin again what it began before.
            now_ms: the time, at which another's turn may have ended.
            until_ms: when the turn ends by itself.
        """
        ...

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to whoever is at work; False if nobody is any more."""
        ...

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and note where whoever is next goes on; commits that were left stay so.

        Whose turn was taken over changes nothing.
        """
        ...

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn.

        Returns:
            False if a later commit was left meanwhile: then the turn goes on.
        """
        ...


class Tickets(Protocol):
    """Tickets that open one WebSocket each, known by their digests alone."""

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        """Remember what a ticket is good for.

        Args:
            digest: of the ticket, which itself is not stored.
            claims: those of the token that asked for it, plain JSON.
            until_ms: when it is over.
        """
        ...

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        """Give a ticket's claims, to one caller alone; None if it is unknown, taken or over.

        A caller whose answer is lost has taken it all the same: not safe to repeat.
        """
        ...


class Delivered(Enum):
    """What became of a frame that was sent to a connection."""

    SENT = "sent"
    GONE = "gone"
    """The connection is closed."""
    BUSY = "busy"
    """Its reader is slow, or the account sends too much at once."""


class Sockets(Protocol):
    """The open WebSockets' other side. Safe to use from several threads."""

    def send(self, connection_id: str, frame: str) -> Delivered:
        """Send a text frame.

        Raises:
            lakesync.errors.Unavailable: it is not known whether it was sent.
        """
        ...

    def close(self, connection_id: str) -> None:
        """Close a connection. Safe to repeat."""
        ...
