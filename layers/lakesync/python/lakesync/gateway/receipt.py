"""The receipt of a push: its outcomes, added up commit by commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.errors import AtomicPushRefused

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Push
    from lakesync.errors import LakeSyncError
    from lakesync.log.merge_batch import Outcome
    from lakesync.log.plan import Admitted

_REFUSED_WITH_OTHERS = (
    "the push is atomic and another of its deltas was refused; correct that one, then push again"
)


class Receipt:
    """Adds up the outcomes of a push."""

    def __init__(self, push: Push, refused: list[DeltaOutcome]) -> None:
        self._accepted = len(push.deltas) + len(push.unreadable) - len(refused)
        self._outcomes = refused
        self._stamp: Stamp = 0

    def add(self, outcome: Outcome) -> None:
        """Count one commit."""
        self._stamp = max(self._stamp, outcome.stamp)
        self._accepted -= len(outcome.refused)
        self._outcomes += [
            DeltaOutcome(index, delta.delta_id, OutcomeKind.DUPLICATE)
            for index, delta in outcome.duplicates
        ]
        self._outcomes += [
            refusal(index, delta.delta_id, error) for (index, delta), error in outcome.refused
        ]

    def refuse_all(self, others: list[Admitted]) -> None:
        """Count an atomic push of which nothing was committed."""
        self._accepted = 0
        kept = [outcome for outcome in self._outcomes if outcome.kind is OutcomeKind.REFUSED]
        self._outcomes = kept + [
            refusal(index, delta.delta_id, AtomicPushRefused(_REFUSED_WITH_OTHERS))
            for index, delta in others
        ]

    def done(self, now_ms: int, epoch: str) -> PushReceipt:
        """Return the receipt, outcomes in the order of the push."""
        outcomes = tuple(sorted(self._outcomes, key=lambda outcome: outcome.index))
        return PushReceipt(self._stamp, self._accepted, outcomes, now_ms, epoch)


def refusal(index: int, delta_id: str, error: LakeSyncError) -> DeltaOutcome:
    """Return the outcome of a delta that was refused."""
    return DeltaOutcome(index, delta_id, OutcomeKind.REFUSED, error)
