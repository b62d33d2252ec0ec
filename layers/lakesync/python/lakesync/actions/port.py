"""The interface of an action handler: it does what clients request, at one outside system.

A handler of your own is found by its entry point; see ``docs/actions.md``. Laws X1-X4:
``docs/spec/actions.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel

    from lakesync.connectors.port import Outside
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


@dataclass(frozen=True, slots=True)
class SupportedAction:
    """One thing that a handler can do."""

    name: str
    description: str = ""
    params_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """A JSON Schema; parameters are checked against it before anything runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One action, as its handler gets it: allowed, and with parameters that fit the schema."""

    run_id: str
    """The same for all attempts, and for no other action: pass it to an outside system that
    supports idempotency keys. 32 hexadecimal digits.
    """
    gateway: str
    client_id: str
    user: str
    action: str
    params: Mapping[str, Any]
    seconds: float
    """How long the handler may take."""
    claims: Mapping[str, Any] = field(default_factory=dict)
    """The claims of the caller's verified token, which `Permission` has already decided by. Of an
    action that is looked up or run again they are those of whoever asked last.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The action was done, with this result."""

    data: Mapping[str, Any] = field(default_factory=dict)


class Unfinished(Enum):
    """What a handler may report of an action that was begun and is not known to be done."""

    NOT_DONE = "not done"
    """It was not done, or doing it again does nothing twice: it is run again."""
    UNKNOWN = "unknown"
    """It may have been done, and this cannot be determined."""


NOT_DONE: Final = Unfinished.NOT_DONE
UNKNOWN: Final = Unfinished.UNKNOWN
Looked: TypeAlias = Done | Unfinished
"""What a look at the outside system gave."""


class ActionHandler(Protocol):
    """Runs clients' actions at one outside system.

    An action that was not done, and may be retried unchanged, raises an error with a retry class;
    one that the other side refuses for good raises `lakesync.errors.ActionFailed`, whose message
    the client reads; one whose outcome is unknown, because an answer was lost, raises
    `lakesync.errors.OutcomeUnknown`. Any other exception of a handler counts as unknown too.
    """

    def supported_actions(self) -> Sequence[SupportedAction]:
        """Return its actions, without a request to the outside system."""
        ...

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Do it, within ``run.seconds``."""
        ...

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Return whether an action was done, after a crash or a lost answer."""
        ...

    def close(self) -> None:
        """Close connections. Safe to repeat."""
        ...


@dataclass(frozen=True)
class HandlerType:
    """A type of action handler: what an entry point of the group ``lakesync.actions`` names."""

    name: str
    title: str
    configuration: type[BaseModel]
    """Its settings; secrets are of pydantic's ``SecretStr``."""
    make: Callable[[Any, Outside], ActionHandler]
    """Creates a handler from settings. Calls no other system; raises
    `lakesync.errors.ValidationFailed` if the operator does not allow it.
    """
