"""What a push, a pull and a sync say that they did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.errors import CursorExpired, OutOfOrder

if TYPE_CHECKING:
    from lakesync.errors import LakeSyncError


@dataclass(frozen=True, slots=True)
class PushSummary:
    """What a push did."""

    accepted: int = 0
    """Deltas that the gateway holds now, duplicates too."""
    quarantined: int = 0
    """Deltas that were refused and wait for the app."""
    restamped: int = 0
    """Deltas that were stamped again, as the clock was wrong or they came late."""
    ungrouped: int = 0
    """Local transactions too large for one commit, whose edits went one by one."""

    def __add__(self, other: PushSummary) -> PushSummary:
        return PushSummary(
            self.accepted + other.accepted,
            self.quarantined + other.quarantined,
            self.restamped + other.restamped,
            self.ungrouped + other.ungrouped,
        )


@dataclass(frozen=True, slots=True)
class PullSummary:
    """What a pull did."""

    pages: int = 0
    deltas: int = 0
    """Deltas that arrived, this client's own echoes too."""
    rebuilt: bool = False
    """The gateway's buffer was another one than before, and everything was read again."""

    def __add__(self, other: PullSummary) -> PullSummary:
        return PullSummary(
            self.pages + other.pages, self.deltas + other.deltas, self.rebuilt or other.rebuilt
        )


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """What a sync did, and what kept a half of it from ending.

    Where a half failed the sync is an ``Err``, whose error has this as its ``done``.
    """

    pushed: PushSummary = PushSummary()
    pulled: PullSummary = PullSummary()
    push_error: LakeSyncError | None = None
    """Why edits must wait; None if none must."""
    pull_error: LakeSyncError | None = None
    """Why pages must wait; None if none must."""
    stopped: bool = False
    """It was told to stop before nothing was left to do."""

    @property
    def error(self) -> LakeSyncError | None:
        """What keeps the sync from ending: a push that waits for the pull is not to blame."""
        if isinstance(self.push_error, OutOfOrder | CursorExpired):
            return self.pull_error or self.push_error
        return self.push_error or self.pull_error
