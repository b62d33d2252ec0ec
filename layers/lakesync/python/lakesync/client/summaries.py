"""What a push, a pull and a sync say that they did."""

from __future__ import annotations

from dataclasses import dataclass


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
    """What a sync did."""

    pushed: PushSummary
    pulled: PullSummary
