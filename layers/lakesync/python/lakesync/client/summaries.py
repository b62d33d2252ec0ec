"""What a pull, and a sync, did."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakesync.client.actions.send import ActionSummary
from lakesync.client.upload.push import PushSummary
from lakesync.errors import CursorExpired, LakeSyncError, OutOfOrder


@dataclass(frozen=True, slots=True)
class PullSummary:
    """What a pull did."""

    pages: int = 0
    deltas: int = 0
    """Deltas that arrived, this client's own echoes too."""
    rebuilt: bool = False
    """The gateway's buffer was a different one than before, and everything was read again."""

    def __add__(self, other: PullSummary) -> PullSummary:
        return PullSummary(
            self.pages + other.pages, self.deltas + other.deltas, self.rebuilt or other.rebuilt
        )


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """What a sync did, and what kept a part of it from ending.

    If a part failed, the sync is an ``Err``, and this is the ``done`` of its error.
    """

    pushed: PushSummary = field(default_factory=PushSummary)
    pulled: PullSummary = field(default_factory=PullSummary)
    push_error: LakeSyncError | None = None
    """Why edits must wait; None if none must."""
    pull_error: LakeSyncError | None = None
    """Why pages must wait; None if none must."""
    stopped: bool = False
    """Whether it was stopped before everything was done."""
    acted: ActionSummary = field(default_factory=ActionSummary)
    action_error: LakeSyncError | None = None
    """Why actions must wait; None if none must."""

    @property
    def error(self) -> LakeSyncError | None:
        """The error that keeps the sync from ending; not that of a push that awaits the pull."""
        if isinstance(self.push_error, OutOfOrder | CursorExpired):
            return self.pull_error or self.push_error
        return self.push_error or self.pull_error or self.action_error
