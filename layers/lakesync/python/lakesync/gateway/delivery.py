"""Frames on their way to connections: side by side, paced, and what becomes of slow readers.

A frame that a reader has no room for is replaced by a poke; who has room for none of those either,
`SLOW_TIMES_MAX` times in a row, gets the reason and is closed: it connects again, and pulls. Where
many are busy at once it is the account that sends too much, which is no reader's fault.
Law T5: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lakesync.errors import RateLimited, Unavailable
from lakesync.ports import Connection, Delivered
from lakesync.wire.frames import encode_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.errors import LakeSyncError
    from lakesync.ports import Connections, Sockets

A = TypeVar("A")
B = TypeVar("B")
SENDERS_MAX: Final = 16
"""Frames that one process sends at once."""
SENT_PER_S_MAX: Final = 2_000
"""Frames that one process sends in a second: a fifth of what an account may ask of API Gateway."""
SLICE: Final = 200
"""Frames between two looks at the clock."""
SLOW_TIMES_MAX: Final = 3
"""How often in a row a reader may have no room for a poke."""
BUSY_SHARE_MAX: Final = 0.1
"""The part of readers that may be busy before it is taken to be the account that is."""
SLOW_REMEMBERED_MAX: Final = 10_000
"""Slow readers that one process remembers."""


class Outgoing(NamedTuple):
    """A frame for a connection, and what it is sent instead if it has no room for that."""

    connection: Connection
    frame: str
    poke: str


class Delivery:
    """Sends frames, and forgets connections that are gone. One for each process.

    Args:
        sockets: the connections' other side.
        connections: who is connected.
        seconds: a clock that never goes back.
        sleep_s: waits.
    """

    def __init__(
        self,
        sockets: Sockets,
        connections: Connections,
        *,
        seconds: Callable[[], float],
        sleep_s: Callable[[float], None],
    ) -> None:
        self._sockets = sockets
        self._connections = connections
        self._seconds = seconds
        self._sleep_s = sleep_s
        self._slow: dict[str, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def send(self, gateway: str, outgoing: Sequence[Outgoing]) -> None:
        """Send frames to connections of a gateway. What cannot be sent is not sent again."""
        busy: list[Outgoing] = []
        for at in range(0, len(outgoing), SLICE):
            began_s = self._seconds()
            some = outgoing[at : at + SLICE]
            results = self._all([(each.connection.id, each.frame) for each in some])
            for each, result in zip(some, results, strict=True):
                if result is Delivered.GONE:
                    self._connections.remove(gateway, each.connection.id)
                elif result is Delivered.BUSY:
                    busy.append(each)
                elif self._slow:
                    self._slow.pop(each.connection.id, None)
            if at + SLICE < len(outgoing):
                self._sleep_s(max(len(some) / SENT_PER_S_MAX - (self._seconds() - began_s), 0))
        if busy:
            self._poke(busy, is_account=len(busy) > max(BUSY_SHARE_MAX * len(outgoing), 1))

    def _poke(self, busy: Sequence[Outgoing], *, is_account: bool) -> None:
        """Poke readers that had no room; close those that have been too slow for too long."""
        results = self._all([(each.connection.id, each.poke) for each in busy])
        for each, result in zip(busy, results, strict=True):
            name = each.connection.id
            if result is Delivered.GONE:
                self._connections.remove(each.connection.gateway, name)
            if result is not Delivered.BUSY or is_account:
                continue
            self._slow[name] = self._slow.pop(name, 0) + 1
            if self._slow[name] >= SLOW_TIMES_MAX:
                del self._slow[name]
                self._refuse(
                    (each.connection, RateLimited("this reader is too slow; pull instead"))
                )
        while len(self._slow) > SLOW_REMEMBERED_MAX:
            del self._slow[next(iter(self._slow))]

    def refuse(self, refused: Sequence[tuple[Connection, LakeSyncError]]) -> None:
        """Send connections the reason, close and forget them. Safe to repeat."""
        self._each(self._refuse, refused)

    def _refuse(self, refused: tuple[Connection, LakeSyncError]) -> None:
        connection, error = refused
        self._one((connection.id, encode_refusal(error, 0, closes=True)))
        try:
            self._sockets.close(connection.id)
        except Unavailable:
            return  # it stays remembered, and the sweep tries again
        self._connections.remove(connection.gateway, connection.id)

    def _all(self, frames: Sequence[tuple[str, str]]) -> list[Delivered]:
        return self._each(self._one, frames)

    def _each(self, act: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Do something with each of some items, side by side; gives the results in order."""
        if len(items) < 2:  # noqa: PLR2004 - one needs no thread
            return [act(item) for item in items]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SENDERS_MAX, "sockets")
        # One task for each sender: one for each frame would cost more than the frame.
        results: dict[int, B] = {}
        left = iter(enumerate(items))  # whose next step is one step for all threads

        def work() -> None:
            for place, item in left:
                results[place] = act(item)

        for done in [self._pool.submit(work) for _ in range(min(SENDERS_MAX, len(items)))]:
            done.result()
        return [results[place] for place in range(len(items))]

    def _one(self, frame: tuple[str, str]) -> Delivered:
        try:
            return self._sockets.send(*frame)
        except Unavailable:
            return Delivered.BUSY
