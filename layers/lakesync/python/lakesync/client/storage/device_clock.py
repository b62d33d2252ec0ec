"""The clock of a client's file, which survives restarts, and follows the server's time.

Rules of this module
    1. The clock's ``last`` is in the database at all times, without a write of its own: every
       edit's stamp is in the outbox, and ``floor`` is the greatest stamp that is known to be at the
       gateway. ``last`` is the greater of the two.
    2. Remote stamps are followed without a drift check, up to the latest that an honest gateway can
       have accepted; a page is never refused because of its stamps.
    3. The device's clock may be wrong; stamps use its time plus an offset, learnt from receipts.

Law K4: ``docs/spec/client.md``; the third rule is K10 there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakesync.core.clock import DRIFT_MS_MAX, HybridLogicalClock, stamp

if TYPE_CHECKING:
    import sqlite3

    from lakesync.core.clock import Stamp
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
        self._floor, self.offset_ms = self._connection.execute(
            "SELECT floor, offset_ms FROM _lakesync_sync"
        ).fetchone()
        self.step_back()

    def device_ms(self) -> int:
        return self._wall_clock()

    def server_ms(self) -> int:
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
        """Reset to the floor and the outbox: nobody else has seen stamps that were refused."""
        last = self._connection.execute("SELECT max(hlc) FROM _lakesync_outbox").fetchone()[0]
        self._clock = HybridLogicalClock(max(self._floor, last or 0))
