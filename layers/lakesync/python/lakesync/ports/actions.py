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
    """Its type, its settings without secrets, who may run what."""


class HandlerStore(Protocol):
    """The action handlers of each gateway. Reads are strongly consistent."""

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Give a gateway's action handlers, in the order of their names."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; False if the name is in use, unless it may be replaced."""
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
    """Empty for none."""


class RunState(Enum):
    """How far the run of an action is."""

    OPEN = "open"
    """Nothing happened outside: it may be run."""
    RUNNING = "running"
    """Somebody runs it; past `ActionRun.until_ms` nobody does, and nobody knows what was done."""
    ENDED = "ended"
    """Its outcome is final."""


@dataclass(frozen=True, slots=True)
class ActionRun:
    """What is remembered of an action that was begun."""

    action_id: str
    """The id under which it was begun first; with an idempotency key others may name it too."""
    digest: str
    """What was asked for."""
    state: RunState
    owner: str
    """Who began or ended it: a token for each attempt."""
    until_ms: int = 0
    outcome: bytes = b""
    """The outcome, once it is final."""


class ActionRuns(Protocol):
    """What became of each action, for as long as a client may ask. Reads are strongly consistent.

    Whoever begins an action is the only one who runs it: of any number who try, one succeeds.
    """

    def get(self, key: ActionKey) -> ActionRun | None:
        """Give the run of an action, by its id, else by its idempotency key."""
        ...

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run, if it still stands as it was seen; None: if there is none."""
        ...

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Note how a run stands that ``run.owner`` began; False if somebody else has begun it."""
        ...

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute; False, and not counted, if that would be too many."""
        ...
