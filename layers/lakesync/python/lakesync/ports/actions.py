"""Stores for action handlers and runs of actions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import (
    NamedTuple,
    Protocol,
)


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
