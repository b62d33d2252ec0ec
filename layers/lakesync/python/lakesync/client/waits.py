"""How long a client waits: after failures, and between two signs of a WebSocket's life.

Waits are random, so that clients spread out. A wait ends early where the device has moved to
another network: the address that this device would send from is compared now and then. No packet
is sent: a UDP socket that is connected only looks up the route. Where there are no sockets (in a
browser), or where two networks give the same address, nothing is noticed and the wait goes on; the
app may call `SyncLoop.wake`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.client.storage.misuse import checked_interval_s
from lakesync.core.clock import doubled
from lakesync.errors import NotTheGateway, Retry, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.errors import LakeSyncError


def never() -> bool:
    """Say that nothing asks to stop."""
    return False


# --- waits after a failure ------------------------------------------------------------------------


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
        ceiling_s = doubled(self.reconnect_s, most_s, failures)
        if error.retry is Retry.NEVER:
            ceiling_s = least_s = most_s / 2
        return max(least_s, min(most_s, least_s + chance * ceiling_s))


WAITS: Final = Waits()
"""What applies to a client that asks for nothing else."""


# --- another network ends a wait ------------------------------------------------------------------


LOOK_S: Final = 2.0
"""How often a client that waits after a failure looks whether it is in another network."""
_FAR_AWAY: Final = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Addresses that nobody has (RFC 5737, RFC 3849): the way to them is the way out."""
_PORT: Final = 9


class WaitableEvent(Protocol):
    def wait(self, timeout: float) -> bool: ...


def own_addresses() -> tuple[str, ...]:
    """Return the addresses of this device on its way out; none without a network."""
    return tuple(filter(None, (_own_address(*target) for target in _FAR_AWAY)))


def _own_address(family: int, target: str) -> str:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as unsent:
            unsent.connect((target, _PORT))
            return str(unsent.getsockname()[0])
    except OSError:
        return ""


def wait_here(
    event: WaitableEvent, wait_s: float, before: object, network: Callable[[], object] | None
) -> bool:
    """Wait for an event while the network is as ``before``; returns whether it happened."""
    if network is None:
        return event.wait(wait_s)
    while wait_s > 0:
        if event.wait(min(wait_s, LOOK_S)):
            return True
        wait_s -= LOOK_S
        if network() != before:
            return False
    return False
