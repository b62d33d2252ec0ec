"""Stores for outside systems: connectors with their secrets and polls, handlers of actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

# --- connectors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredConnector:
    """A connector of a gateway, as it is registered, with its progress."""

    name: str
    definition: bytes
    """What an administrator registered; see `lakesync.connectors.registry`."""
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


# --- handlers and runs of actions -----------------------------------------------------------------


class StoredHandler(NamedTuple):
    """An action handler of a gateway, as it was registered."""

    name: str
    definition: bytes
    """Its type, its settings without secrets, and who may run which actions."""


class HandlerStore(Protocol):
    """The action handlers of each gateway. Reads are strongly consistent."""

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Return a gateway's action handlers, in the order of their names."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; False if the name is in use and may not be replaced."""
        ...

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; False if there was none of that name."""
        ...


class ActionKey(NamedTuple):
    """How a client names an action."""

    gateway: str
    client_id: str
    action_id: str
    idempotency_key: str
    """Empty if there is none."""


class RunState(Enum):
    """The state of an action's run."""

    OPEN = "open"
    """Nothing was done in the outside system: it may be run."""
    RUNNING = "running"
    """A process runs it; after `ActionRun.until_ms` none does, and its effect is unknown."""
    ENDED = "ended"
    """Its outcome is final."""


@dataclass(frozen=True, slots=True)
class ActionRun:
    """What is stored of an action that was begun."""

    action_id: str
    """The id under which it was first begun; with an idempotency key others may name it too."""
    digest: str
    """The digest of the request."""
    state: RunState
    owner: str
    """The attempt that began or ended it: each has its own token."""
    until_ms: int = 0
    outcome: bytes = b""
    """The outcome, once it is final."""


class ActionRuns(Protocol):
    """The outcome of each action, for as long as a client may ask. Reads are strongly consistent.

    Only the process that began an action runs it: of several that try to begin, one succeeds.
    """

    def get(self, key: ActionKey) -> ActionRun | None:
        """Return the run of an action, by its id, else by its idempotency key."""
        ...

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run, if it is still as it was seen; None: if there is none."""
        ...

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Store the state of a run that ``run.owner`` began; False if another has begun it."""
        ...

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute; False, and not counted, if that would exceed the limit."""
        ...
