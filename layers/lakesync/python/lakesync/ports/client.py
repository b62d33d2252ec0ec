"""What a client needs from its transport."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    runtime_checkable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.actions import ActionAnswers, ActionDescription, ActionPush
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas


@runtime_checkable
class TellsSchemas(Protocol):
    """What a `Transport` may also do: give a client the schemas."""

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        ...


class ConnectorDescription(NamedTuple):
    """A type of connector that the gateway has, for a form that asks for its settings."""

    type: str
    title: str
    """What people call the outside system."""
    configuration: Mapping[str, Any]
    """The JSON Schema of its settings; secrets are ``writeOnly``; empty with an ``error``."""
    error: str = ""
    """Why it cannot be used: its package cannot be imported there."""


@runtime_checkable
class TellsConnectorTypes(Protocol):
    """What a `Transport` may also do: tell which types of connectors there are."""

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors."""
        ...


class Transport(Protocol):
    """How a client reaches its gateway.

    Methods raise `lakesync.errors`: what the gateway answered, or `Unreachable` if nothing
    came back. Repeating either is always safe.
    """

    def push(self, push: Push) -> PushReceipt:
        """Push deltas; those that the receipt counts as accepted are durable."""
        ...

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        ...


@runtime_checkable
class RunsActions(Protocol):
    """What a `Transport` may also do: have actions done. Raises as it does."""

    def run_actions(self, push: ActionPush) -> ActionAnswers:
        """Have actions run; an outcome that was answered as final stays so. Idempotent."""
        ...

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions the client may run, by the names of their handlers."""
        ...


class Hearer(Protocol):
    """A receiver of changes: a client. Its methods may be called from any thread."""

    client_id: str
    heartbeat_s: float
    """How long a connection is silent before a keep-alive is sent over it, in seconds."""
    reconnect_s: float
    """The wait after a failure of the connection; it doubles with each further one."""
    reconnect_s_max: float
    """The longest such wait, unless the gateway asks for longer."""

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that fits the cursor; True if it leaves nothing to pull."""
        ...

    def reads_again(self, page: PullPage) -> bool:
        """Return whether a broadcast shows that the next pull reads tables again.

        All clients that are told so by one change of rules would do it at the same moment.
        """
        ...

    def wake(self) -> None:
        """Sync now."""
        ...

    def next_pull(self) -> Pull:
        """Return the request for the deltas behind the cursor."""
        ...

    def is_current(self, page: PullPage) -> bool:
        """Return whether the answer to `next_pull` shows that nothing was missed."""
        ...

    def on_connected(self, *, is_open: bool, reason: str | None = None) -> None:
        """Note whether the connection that brings changes is open, and if not, the reason."""
        ...


class Listening(Protocol):
    """A listener that runs until it is stopped."""

    def stop(self) -> None:
        """End it. Idempotent."""
        ...


@runtime_checkable
class Listens(Protocol):
    """What a `Transport` may also do: notify a client of changes without being asked."""

    def listen(self, hearer: Hearer) -> Listening | None:
        """Begin to notify; None if there is nothing to listen to."""
        ...


@runtime_checkable
class DropsRequests(Protocol):
    """What a `Transport` may also do: give up requests that are no longer needed."""

    def drop_requests(self) -> None:
        """Make each request in flight fail at once as `Unreachable`; later ones work."""
        ...
