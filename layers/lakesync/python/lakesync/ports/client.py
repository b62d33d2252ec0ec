"""What a client asks of its transport."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Protocol,
    runtime_checkable,
)

if TYPE_CHECKING:
    from lakesync.core.actions import ActionAnswers, ActionDescription, ActionPush
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas


@runtime_checkable
class TellsSchemas(Protocol):
    """What a `Transport` may do besides: those that can give a client the schemas."""

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        ...


class Transport(Protocol):
    """How a client reaches its gateway.

    Methods raise `lakesync.errors`: what the gateway answered, or `Unreachable` if nothing
    came back. Repeating either is always safe.
    """

    def push(self, push: Push) -> PushReceipt:
        """Hand deltas over; what the receipt counts as accepted is durable."""
        ...

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        ...


@runtime_checkable
class RunsActions(Protocol):
    """What a `Transport` may do besides: have actions done. Raises as it does."""

    def run_actions(self, push: ActionPush) -> ActionAnswers:
        """Have actions run; what is answered as final stays so. Safe to repeat."""
        ...

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions the client may run, by the names of their handlers."""
        ...


class Hearer(Protocol):
    """Who hears of changes without asking: a client. Its methods may be called from any thread."""

    client_id: str

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that fits the cursor; True if there is nothing to pull for it."""
        ...

    def wake(self) -> None:
        """Sync now."""
        ...

    def next_pull(self) -> Pull:
        """Give what asks for a delta behind the cursor."""
        ...

    def on_connected(self, *, is_open: bool) -> None:
        """Note whether changes are heard of."""
        ...


class Listening(Protocol):
    """What goes on listening until it is stopped."""

    def stop(self) -> None:
        """End it. Safe to repeat."""
        ...


@runtime_checkable
class Listens(Protocol):
    """What a `Transport` may do besides: notify a client of changes without being asked."""

    def listen(self, hearer: Hearer) -> Listening | None:
        """Begin to notify; None if there is nothing to listen to."""
        ...


@runtime_checkable
class DropsRequests(Protocol):
    """What a `Transport` may do besides: give up what nobody waits for any more."""

    def drop_requests(self) -> None:
        """Have each request that is under way fail at once as `Unreachable`; the next ones work."""
        ...
