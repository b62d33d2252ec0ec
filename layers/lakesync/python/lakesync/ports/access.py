"""Stores for access control: revocations and known clients, quotas, the administrators' audit.

An audit record is written before the change that it records, so that none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

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


# --- audit records of administrators' changes -----------------------------------------------------


TIME_DIGITS: Final = 12
STACK: Final = "_stack"
"""In place of a gateway, for changes that concern the whole stack. No gateway has such an id."""


def id_of_time(at_ms: int) -> str:
    """Return the prefix of the ids of a millisecond's records; text order is the order of time."""
    return f"{at_ms:0{TIME_DIGITS}x}"


class AuditOutcome(StrEnum):
    """The outcome of a change."""

    STARTED = "begun"
    """It was requested; whether it took effect is not known, or not known yet."""
    DONE = "done"
    TRIED = "tried"
    """A dry run: nothing was to be changed."""
    REFUSED = "refused"
    FAILED = "failed"
    """It may have taken effect in part: see the state after it."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One requested change."""

    gateway: str
    id: str
    """`id_of_time`, and a token."""
    at_ms: int
    user: str
    """The token's ``sub``; or the ARN of the command line's AWS credentials."""
    role: str
    operation: str
    """As the API's description names it; or the command's."""
    target: str
    """What was to be changed: a table, a connector, a user; empty for the whole gateway."""
    request: str
    """The request's id, as in the access log."""
    before: str
    """The target's state as JSON, or its digest and size if that is large."""
    after: str = ""
    """The same after the change; empty while it is not known."""
    outcome: AuditOutcome = AuditOutcome.STARTED
    code: str = ""
    """The code of the error, if it was not done."""
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which records are wanted, the latest first."""

    since_ms: int = 0
    until_ms: int | None = None
    """Only records before this time."""
    user: str = ""
    operation: str = ""
    below: str = ""
    """Only records whose id is below this one: where the page before ended."""
    limit: int = 100


class AuditStore(Protocol):
    """The audit records of gateways. A record whose outcome is known never changes."""

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        """Write a record of something that is about to be changed, to be kept at least so long.

        Raises:
            lakesync.errors.Unavailable: it may have been written or not.
        """
        ...

    def end(self, record: AuditRecord) -> None:
        """Write the outcome of a record, unless it has one."""
        ...

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first, and the id below which to continue, or "" at the end.

        There may be fewer than the limit, even none, although more follow.
        """
        ...
