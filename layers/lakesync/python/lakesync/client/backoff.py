"""How long background work waits after a failure: random, so that clients spread out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.errors import NotTheGateway, Retry

if TYPE_CHECKING:
    from lakesync.errors import LakeSyncError

BACKOFF_S_MIN: Final = 1.0
"""The first wait after a failure is a random part of twice this."""
BACKOFF_S_MAX: Final = 300.0
"""The longest wait after failures, unless the gateway asks for longer."""
FOREIGN_S_MAX: Final = 15.0
"""The longest wait after an answer that is not the gateway's: its user may have logged in since."""
FOREIGN_WAIT_S_MAX: Final = 60.0
"""The same where that answer asks to wait: 429, 503 and their like."""


def backoff_s(error: LakeSyncError, failures: int, chance: float) -> float:
    """Return how long to wait, by the last failure, their number, and a number in [0, 1)."""
    most_s, least_s = BACKOFF_S_MAX, float(error.retry_after_s)
    if error.is_foreign:
        most_s = FOREIGN_S_MAX if isinstance(error, NotTheGateway) else FOREIGN_WAIT_S_MAX
        least_s = min(least_s, most_s / 2)
    ceiling_s = min(most_s, BACKOFF_S_MIN * (1 << min(failures, 16)))
    if error.retry is Retry.NEVER:
        ceiling_s = least_s = most_s / 2
    return max(least_s, min(most_s, least_s + chance * ceiling_s))
