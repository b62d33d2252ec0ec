"""Stores for connectors and their secrets, and the schedule of their polls."""

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
    """A connector of a gateway, as it is registered, with its progress."""

    name: str
    definition: bytes
    """What an administrator registered; see `lakesync.connectors.definition`."""
    state: bytes
    """Its progress; empty if it was never polled. See `lakesync.connectors.state`."""
    lease: int
    """Increases each time that a process takes the right to poll it."""
    leased_until_ms: int


class ConnectorStore(Protocol):
    """The connectors of gateways; changes are conditional writes."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors, in the order of their names."""
        ...

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Return one of them; None if there is none of that name."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register a connector; False, and nothing written, if the name is in use."""
        ...

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; False, and nothing written, if it was not as seen."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Remove a connector. Safe to repeat."""
        ...

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll a connector, if it is free, or if ``mine`` is the lease in force.

        Returns:
            The connector with the caller's lease; None if another process has the lease, or there
            is no such connector.
        """
        ...

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save a connector's progress and the end of the lease; False if the lease is another's."""
        ...


class SecretStore(Protocol):
    """Secrets by their names. What is stored is never returned by the API."""

    def get(self, name: str) -> Mapping[str, str]:
        """Return a secret's fields; none if there is no such secret."""
        ...

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret, replacing any under the same name. Idempotent."""
        ...

    def remove(self, name: str) -> None:
        """Remove a secret permanently. Idempotent."""
        ...

    def forget(self, name: str) -> None:
        """Read a secret again at the next call: another process may have changed it."""
        ...


class PollSchedules(Protocol):
    """When connectors are polled, and a poll on request."""

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Poll a connector at an interval, replacing its former schedule. Idempotent."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Stop polling it. Idempotent."""
        ...

    def poll_now(self, gateway: str, name: str) -> None:
        """Start a poll without waiting for it."""
