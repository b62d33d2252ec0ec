"""What connectors keep, their secrets, and when they are polled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class StoredConnector:
    """A connector of a gateway, as it is registered, and how far it is."""

    name: str
    definition: bytes
    """What an administrator registered; see `lakesync.connectors.definition`."""
    state: bytes
    """How far it is; empty if it was never polled. See `lakesync.connectors.state`."""
    lease: int
    """Grows each time that somebody takes the right to poll it."""
    leased_until_ms: int


class ConnectorStore(Protocol):
    """The connectors of gateways: read as they are, changed under conditions."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Give a gateway's connectors, in the order of their names."""
        ...

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Give one of them; None if there is none of that name."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register a connector; False if the name is in use, and nothing was written."""
        ...

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; False if it was not as seen, and nothing was written."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Remove a connector. Safe to repeat."""
        ...

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll a connector, if nobody has it, or ``mine`` is the lease in force.

        Returns:
            The connector with a lease that is the caller's; None if somebody else has it, or there
            is no such connector.
        """
        ...

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save how far a connector is, and until when the lease holds; False if it is another's."""
        ...


class SecretStore(Protocol):
    """Secrets by their names. What is stored is never returned by the API."""

    def get(self, name: str) -> Mapping[str, str]:
        """Give a secret's fields; none if there is no such secret."""
        ...

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret, in place of what was stored under the name. Safe to repeat."""
        ...

    def remove(self, name: str) -> None:
        """Remove a secret for good. Safe to repeat."""
        ...

    def forget(self, name: str) -> None:
        """Read a secret anew when it is asked for next: another process may have changed it."""
        ...


class PollSchedules(Protocol):
    """When connectors are polled, and polling one now."""

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Poll a connector at an interval, in place of what was said before. Safe to repeat."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Poll it no more. Safe to repeat."""
        ...

    def poll_now(self, gateway: str, name: str) -> None:
        """Begin a poll, and do not wait for it."""
