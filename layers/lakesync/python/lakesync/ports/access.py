"""Stores for access control and quotas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Final,
    NamedTuple,
    Protocol,
)

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp

GATEWAY_KIND: Final = "gateway"


@dataclass(frozen=True, slots=True)
class Revocation:
    """A user or a client that is revoked at a gateway; or everybody, because it was deleted."""

    kind: str
    """``user``, ``client``, or `GATEWAY_KIND`."""
    name: str
    """The user, the client id, or the gateway."""
    at_ms: int
    by: str
    """The user who revoked it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was last noted of a client, from a pull."""

    at_ms: int
    cursor: Stamp
    """The commit up to which it had read; 0 if it had completed nothing."""
    quarantined: int | None = None
    """How many of its edits wait for a decision, as it reports; None if it does not."""


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client that has connected at least once."""

    client_id: str
    user: str
    """The user to whom it is bound."""
    seen: Seen | None = None
    """None if nothing was noted yet."""


class AccessStore(Protocol):
    """To which user each client belongs, and who is revoked.

    What is read of clients may be a moment old; the results of `bind` and the revocations are not.
    """

    def client(self, gateway: str, client_id: str) -> KnownClient | None:
        """Return a client; None if it is bound to no user."""
        ...

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        """Bind a client to a user, unless it is bound; give the user to whom it is bound now."""
        ...

    def release(self, gateway: str, client_id: str) -> None:
        """Bind a client to no user; the next user of it is then bound. Idempotent."""
        ...

    def note(self, gateway: str, client_id: str, seen: Seen) -> None:
        """Note what was seen of a client, unless it is unbound or something later was noted."""
        ...

    def clients(self, gateway: str, place: str, limit: int) -> tuple[list[KnownClient], str]:
        """Return some clients behind a place; and the next place, or "".

        There may be fewer than the limit, even none, although more follow.
        """
        ...

    def revocations(self, gateway: str) -> list[Revocation]:
        """Return all revocations, clients before users, each in the order of their names."""
        ...

    def revoke(self, gateway: str, revocation: Revocation) -> None:
        """Revoke a user or a client; repeating it only changes when and by whom."""
        ...

    def restore(self, gateway: str, kind: str, name: str) -> None:
        """Let a user or a client in again. Idempotent."""
        ...


class Usage(NamedTuple):
    """How much was pushed."""

    pushes: int = 0
    deltas: int = 0
    bytes: int = 0
    """Of request bodies, inflated."""


class Quota(NamedTuple):
    """How much may be pushed each second; 0 for no limit, None for the stack's default."""

    pushes: int | None = None
    deltas: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """What all processes together have reported of one gateway in one window of time."""

    window: int
    usage: Usage
    quota: Quota
    """What the operator has set for this gateway."""


class QuotaStore(Protocol):
    """What gateways use, and what operators allow them."""

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to what a gateway used in a window, and give what all processes have reported of it.

        If a later window has begun already, by a clock that is ahead, it is added to that one.

        Raises:
            lakesync.errors.Unavailable: nothing, or everything, was added.
        """
        ...

    def quota(self, gateway: str) -> Quota:
        """Return the quota that the operator has set for a gateway."""
        ...

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use, replacing the earlier setting. Idempotent."""
        ...
