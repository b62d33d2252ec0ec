"""Stores beside the buffer: who has access, quotas, the audit, connectors, handlers of actions.

An audit record is written before the change that it records, so that none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp

# --- access, quotas and the audit -----------------------------------------------------------------


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

    def get_anew(self, name: str) -> Mapping[str, str]:
        """Return a secret's fields as they are stored: another process may have changed them.

        What is written back is made of these, so that it does not undo the other's change.
        """
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
