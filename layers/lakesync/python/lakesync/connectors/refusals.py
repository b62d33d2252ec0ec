"""What a gateway refuses of a push: what is for good, and what asks for patience."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.core.messages import OutcomeKind
from lakesync.errors import ClockDrift, Retry, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.errors import LakeSyncError

AHEAD_MS_MAX: Final = 86_400_000
"""How far ahead of our clock a change may be that waits for it: what is dated later is the source's
own fault, and a dead letter."""


def refused_in(
    receipt: PushReceipt, deltas: Sequence[Delta], now_ms: int
) -> dict[int, LakeSyncError]:
    """Give what was refused for good, by its place.

    Raises:
        LakeSyncError: something was refused that is taken later as it is. So is a stamp that is
            ahead of our clock: no connector dates behind its poll, so the clock stepped back.
    """
    refused = {}
    for outcome in receipt.outcomes:
        if outcome.kind is not OutcomeKind.REFUSED or outcome.error is None:
            continue
        if outcome.error.retry is Retry.LATER:
            raise outcome.error
        ahead_ms = (deltas[outcome.index].hlc >> 16) - now_ms
        if isinstance(outcome.error, ClockDrift) and ahead_ms <= AHEAD_MS_MAX:
            raise Unavailable(
                f"the clock stepped back by {ahead_ms} ms or more: waiting until it has caught up",
                retry_after_s=max(-(-(ahead_ms - DRIFT_MS_MAX) // 1000), 1),
            ) from outcome.error
        refused[outcome.index] = outcome.error
    return refused
