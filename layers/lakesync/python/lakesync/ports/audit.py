"""Changes by administrators: records that are written before the change, so that none is lost."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

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
