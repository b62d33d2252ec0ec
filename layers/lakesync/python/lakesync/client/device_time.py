"""Time on a device: the clock that stamps edits, and how long work waits after a failure.

Rules of the clock of a client's file, which survives restarts, and follows the server's time
    1. The clock's ``last`` is in the database at all times, without a write of its own: every
       edit's stamp is in the outbox, and ``floor`` is the greatest stamp that is known to be at the
       gateway. ``last`` is the greater of the two.
    2. Remote stamps are followed without a drift check, up to the latest that an honest gateway can
       have accepted; a page is never refused because of its stamps.
    3. The device's clock may be wrong; stamps use its time plus an offset, learnt from receipts.

Law K4: ``docs/spec/client.md``; the third rule is K10 there.

Waits are random, so that clients spread out. A wait ends early where the device has moved to
another network: the address that this device would send from is compared now and then. No packet
is sent: a UDP socket that is connected only looks up the route. Where there are no sockets (in a
browser), or where two networks give the same address, nothing is noticed and the wait goes on; the
app may call `SyncLoop.wake`.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.client.misuse import checked_interval_s
from lakesync.core.clock import DRIFT_MS_MAX, HybridLogicalClock, stamp
from lakesync.errors import NotTheGateway, Retry, ValidationFailed

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.errors import LakeSyncError
    from lakesync.ports import WallClock


def system_clock() -> int:
    """Return the time of the machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class DeviceClock:
    """Issues the stamps of one client. Used only while holding the database's lock."""

    def __init__(self, connection: sqlite3.Connection, wall_clock: WallClock) -> None:
        self._connection = connection
        self._wall_clock = wall_clock
        self._clock = HybridLogicalClock()
        self._floor: Stamp = 0
        self.offset_ms = 0
        """What to add to the device's clock to get the server's."""

    def reload(self) -> None:
        """Read the clock's state out of the database."""
        self._floor, self.offset_ms = self._connection.execute(
            "SELECT floor, offset_ms FROM _lakesync_sync"
        ).fetchone()
        self.step_back()

    def device_ms(self) -> int:
        """Return the device's own wall time, right or wrong."""
        return self._wall_clock()

    def server_ms(self) -> int:
        """Return the gateway's time, by the latest known difference of the clocks."""
        return self._wall_clock() + self.offset_ms

    def now(self) -> Stamp:
        """Issue a stamp above everything that was issued or followed."""
        return self._clock.now(self._wall_clock() + self.offset_ms)  # an edit waits: no `server_ms`

    def follow(self, remote: Stamp, cursor: Stamp) -> None:
        """Advance past the greatest stamp of a page, whose cursor shows the gateway's time.

        No honest gateway accepts a delta further ahead than the drift bound. Following a later
        stamp would give this client's edits stamps that the gateway must refuse.
        """
        self.accepted(min(remote, cursor + stamp(DRIFT_MS_MAX)))

    def discarded(self, own: Stamp, cursor: Stamp) -> None:
        """Note that a stamp of this client leaves the outbox, and may nevertheless have arrived.

        The stamp is not issued again, if the gateway can have accepted it by the time that the
        cursor shows; one further ahead would drag all later stamps with it.
        """
        if own <= cursor + stamp(DRIFT_MS_MAX):
            self.accepted(own)

    def accepted(self, known: Stamp) -> None:
        """Note that a stamp is at the gateway, within the transaction that learns of it."""
        if known > self._floor:
            self._floor = known
            self._clock.last = max(self._clock.last, known)
            self._connection.execute("UPDATE _lakesync_sync SET floor = ?", (known,))

    def correct(self, server_ms: int, sent_ms: int, received_ms: int) -> None:
        """Learn the server's time from a receipt; 0 if it does not tell.

        The server read its clock between sending and receiving, so the true offset lies in
        ``[server - received, server - sent]``. The offset moves by the least that brings it there:
        a correct clock stays unchanged, however slow the network.
        """
        if not server_ms or received_ms < sent_ms:  # unknown, or the device's clock was set back
            return
        offset_ms = min(max(self.offset_ms, server_ms - received_ms), server_ms - sent_ms)
        if offset_ms != self.offset_ms:
            self.offset_ms = offset_ms
            self._connection.execute("UPDATE _lakesync_sync SET offset_ms = ?", (offset_ms,))

    def step_back(self) -> None:
        """Reset to the floor and the edits in the outbox, so that some can be stamped again.

        They were refused for being in the future, so only this client has seen them.
        """
        last = self._connection.execute("SELECT max(hlc) FROM _lakesync_outbox").fetchone()[0]
        self._clock = HybridLogicalClock(max(self._floor, last or 0))


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
    event: WaitableEvent, wait_s: float, before: object, network: Callable[[], object] | None
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
