"""Notices that the device has moved to another network, so that no long wait goes on there.

The address that this device would send from is compared now and then, while a client waits after a
failure. No packet is sent: a UDP socket that is connected only looks up the route. Where there are
no sockets (in a browser), or where two networks give the same address, nothing is noticed and the
wait goes on; the app may call `SyncLoop.wake`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S: Final = 2.0
"""How often a client that waits after a failure looks whether it is in another network."""
_FAR_AWAY: Final = (
    (socket.AF_INET, "192.0.2.1"),
    (socket.AF_INET6, "2001:db8::1"),
)
"""Addresses that nobody has (RFC 5737, RFC 3849): the way to them is the way out."""
_PORT: Final = 9


class Waits(Protocol):
    """An event that can be waited for."""

    def wait(self, timeout: float) -> bool:
        """Wait at most so many seconds; returns whether it happened."""
        ...


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
    event: Waits, wait_s: float, before: object, network: Callable[[], object] | None
) -> bool:
    """Wait for an event, in one network.

    Args:
        event: the event.
        wait_s: for how long.
        before: what ``network`` returned before the failure.
        network: identifies the network that the device is in; None to stay in this one.

    Returns:
        Whether the event happened. The wait also ends in another network.
    """
    if network is None:
        return event.wait(wait_s)
    while wait_s > 0:
        if event.wait(min(wait_s, LOOK_S)):
            return True
        wait_s -= LOOK_S
        if network() != before:
            return False
    return False
