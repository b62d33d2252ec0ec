"""What is refused of a push, for good or for a while; and which errors end a whole poll."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.port import FEED
from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.core.messages import OutcomeKind
from lakesync.errors import (
    AdapterQuotaExceeded,
    AdapterUnreachable,
    ClockDrift,
    Conflict,
    GatewayDeleted,
    LakeSyncError,
    Retry,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt

AHEAD_MS_MAX: Final = 86_400_000
"""How far ahead of our clock a change may be that waits for it: what is dated later is the source's
own fault, and a dead letter."""

_ALL: Final = (Unavailable, AdapterUnreachable, AdapterQuotaExceeded, GatewayDeleted, Conflict)
"""What is wrong with more than one table."""


def stops_all(source: str, error: LakeSyncError) -> bool:
    """Return whether an error is of more than one table: a feed brings the changes of all."""
    is_feeds = source == FEED and error.retry is Retry.LATER
    return is_feeds or isinstance(error, _ALL)


def refused_in(
    receipt: PushReceipt, deltas: Sequence[Delta], now_ms: int
) -> dict[int, LakeSyncError]:
    """Return what was refused for good, by its place.

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
