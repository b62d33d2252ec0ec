"""Entries of the outbox and their statuses.

::

    pending ──push──► sent ──receipt──► acknowledged (gone)
                       │  └──receipt──► quarantined ──retry──► pending
                       │                     └──discard──► gone, its effect taken back
                  no answer; everything is pulled, it is not there
                       └──► unseen ──push──► sent, and so on
                               └──refused as late──► late ──pulled, not there──► pending

An entry is ``sent`` while its push has not been answered; it is pushed again, which is harmless:
the gateway answers a repeat as a duplicate. It is never stamped again while the unanswered push may
have stored it as an event, or still may.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.errors import BY_CODE, InternalError
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError


class Status(StrEnum):
    """Where an edit stands on its way; stored by these names."""

    PENDING = "pending"
    SENT = "sent"
    """Pushed, and no answer yet: the gateway may hold it or not."""
    UNSEEN = "unseen"
    """Pushed without an answer, and not in any page since. Its push may be in flight."""
    LATE = "late"
    """As `UNSEEN`, and refused as late, perhaps because it had just arrived; it cannot arrive any
    more.
    """
    QUARANTINED = "quarantined"
    """Refused for what it is; it waits for the app."""
    HELD_BACK = "held_back"
    """Accepted by a buffer that was restored since, or whose row is being read again; whether it
    was lost is not yet known.
    """
    OFFERED = "offered"
    """As that, and not among what was read; but trimmed log, and rows hidden by rules, could not be
    read. Its stamp stays unchanged: if it is too late, the gateway had it.
    """
    LOST = "lost"
    """As that, and recent enough that it would have been read. If it is too late, it is stamped
    again.
    """


IN_DOUBT: Final = frozenset({Status.SENT, Status.UNSEEN, Status.LATE})
"""Where an edit stands that may be at the gateway, or may yet arrive there."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An edit that waits."""

    delta: Delta
    status: Status
    error: LakeSyncError | None = None
    """Why it was refused, where it was."""

    @staticmethod
    def stored(
        status: str, run: bytes, code: str | None, message: str | None, field: str | None
    ) -> OutboxEntry:
        """Read an entry out of its columns."""
        (delta,) = decode_records(run)
        if code is None:
            return OutboxEntry(delta, Status(status))
        error = BY_CODE.get(code, InternalError)(message or "", field=field)
        return OutboxEntry(delta, Status(status), error)

    @property
    def code(self) -> str:
        """The code of the refusal; empty if there was none."""
        return self.error.code if self.error else ""

    @property
    def reason(self) -> str:
        """The sentence of the refusal; empty if there was none."""
        return self.error.message if self.error else ""


class Entry(NamedTuple):
    """An entry as it is stored."""

    hlc: Stamp
    txn: int | None
    """The local transaction that the edit belongs to; None if it stands alone."""
    status: str
    run: bytes

    @property
    def delta(self) -> Delta:
        """The edit itself."""
        return decode_records(self.run)[0]
