"""How long background work waits after a failure: random, so that clients spread out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.arguments import checked_interval_s
from lakesync.errors import NotTheGateway, Retry, ValidationFailed

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
HEARTBEAT_S: Final = 450.0
"""How long a WebSocket is silent before a keep-alive is sent over it; up to a tenth longer. Each
costs two messages.
"""
HEARTBEAT_S_MAX: Final = 540.0
"""API Gateway ends a connection that is silent for ten minutes."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a client in the background waits: ``client.connect(waits=Waits(reconnect_s=5))``.

    Raises:
        ValidationFailed: a time is not above 0, or not within its bounds.
    """

    heartbeat_s: float = HEARTBEAT_S
    """How long a WebSocket is silent before a keep-alive is sent over it, up to a tenth longer; at
    most 540.
    """
    reconnect_s: float = BACKOFF_S_MIN
    """After a failure of a sync, or of the WebSocket, the next try follows within twice this. The
    wait doubles with each further failure.
    """
    reconnect_s_max: float = BACKOFF_S_MAX
    """The longest wait after failures, unless the gateway asks for longer."""

    def __post_init__(self) -> None:
        """Refuse what cannot be waited for."""
        for name in ("heartbeat_s", "reconnect_s", "reconnect_s_max"):
            object.__setattr__(self, name, checked_interval_s(getattr(self, name), name))
        if self.heartbeat_s > HEARTBEAT_S_MAX:
            raise ValidationFailed(
                f"heartbeat_s is at most {HEARTBEAT_S_MAX:g}: API Gateway ends a connection that "
                "is silent for ten minutes",
                field="heartbeat_s",
            )
        if self.reconnect_s > self.reconnect_s_max:
            raise ValidationFailed(
                f"reconnect_s is at most reconnect_s_max, and {self.reconnect_s:g} is above "
                f"{self.reconnect_s_max:g}",
                field="reconnect_s",
            )

    def backoff_s(self, error: LakeSyncError, failures: int, chance: float) -> float:
        """Return how long to wait, by the last failure, their number, and a number in [0, 1)."""
        most_s, least_s = self.reconnect_s_max, float(error.retry_after_s)
        if error.is_foreign:
            is_login = isinstance(error, NotTheGateway)
            most_s = min(most_s, FOREIGN_S_MAX if is_login else FOREIGN_WAIT_S_MAX)
            least_s = min(least_s, most_s / 2)
        ceiling_s = min(most_s, self.reconnect_s * (1 << min(failures, 16)))
        if error.retry is Retry.NEVER:
            ceiling_s = least_s = most_s / 2
        return max(least_s, min(most_s, least_s + chance * ceiling_s))


WAITS: Final = Waits()
"""What applies to a client that asks for nothing else."""
