"""Sends frames to connections, in parallel and paced; slow readers get pokes, then are closed.

A frame for a busy connection is replaced by a poke. A connection that has no room for a poke
either, `SLOW_TIMES_MAX` times in a row, is sent the reason and closed: its client connects again,
and pulls. If many connections are busy at once, the account is sending too much, which is not the
readers' fault: frames are then sent more slowly. The failure of one frame never delays another.

A frame that has no answer soon delays no other connection either. What is to be sent to its own
connection meanwhile is gathered into one poke, which follows it.

Law T5: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from lakesync.errors import LakeSyncError, RateLimited
from lakesync.ports import Connection, FrameResult
from lakesync.wire import proto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.core.messages import ActionPush, Pull, PullPage, Push, PushReceipt
    from lakesync.ports import Connections, Sockets
    from lakesync.wire.proto import Request

A = TypeVar("A")
B = TypeVar("B")
SENDERS_MAX: Final = 16
"""Frames that one process sends at once."""
SENT_PER_S_MAX: Final = 2_000
"""Frames that one process sends in a second: a fifth of API Gateway's limit for an account."""
SENT_PER_S_MIN: Final = 100
"""Frames a second that one process still sends, however busy the account is."""
SLICE: Final = 200
"""Frames between two readings of the clock."""
LATE_S: Final = 0.05
"""How long others wait for frames that are under way."""
DRAIN_S_MAX: Final = 8.0
"""How long a process that ends waits for them: longer than a frame without an answer takes."""
SLOW_TIMES_MAX: Final = 3
"""How often in a row a reader may have no room for a poke."""
BUSY_SHARE_MAX: Final = 0.1
"""The share of busy readers above which the account is taken to be throttled."""
SLOW_REMEMBERED_MAX: Final = 10_000
"""Slow readers that one process remembers."""


class Frames(Protocol):
    """One encoding of frames: `lakesync.wire.proto`, or `lakesync.wire.json_frames`."""

    @property
    def FRAME_DELTA_BYTES_MAX(self) -> int: ...  # noqa: N802 - a module's constant
    @property
    def MEDIA_TYPE(self) -> str: ...  # noqa: N802
    def read_request(self, frame: str, /) -> Request: ...
    def decode_push(self, message: Any, /) -> Push: ...
    def decode_pull(self, message: Any, /) -> Pull: ...
    def decode_action_push(self, message: Any, /) -> ActionPush: ...
    def action_body(self, message: Any, /) -> bytes: ...
    def encode_receipt_frame(self, receipt: PushReceipt, request_id: int, /) -> str: ...
    def encode_page_frame(self, page: PullPage, request_id: int, /) -> str: ...
    def encode_action_response_frame(self, body: bytes, request_id: int, /) -> str: ...
    def encode_broadcast(self, page: PullPage, /) -> str: ...
    def encode_refusal(self, error: LakeSyncError, request_id: int, /, *, closes: bool) -> str: ...


def frames_in(*, is_json: bool) -> Frames:
    """Return an encoding; that of JSON is loaded when the first connection has it."""
    if not is_json:
        return proto
    from lakesync.wire import json_frames  # noqa: PLC0415 - as said

    return json_frames


class Outgoing(NamedTuple):
    """A frame for a connection, and the replacement if the connection has no room for it."""

    connection: Connection
    frame: str
    poke: str


def always() -> bool:
    """Always allow more time: no caller is waiting."""
    return True


class FrameSender:
    """Sends frames, and removes connections that are gone. One for each process.

    Args:
        seconds: a clock that never goes back.
        per_s: the most frames that this process sends in a second.
        on_failure: called when API Gateway refuses something, once for each call.
    """

    def __init__(
        self,
        sockets: Sockets,
        connections: Connections,
        *,
        seconds: Callable[[], float],
        sleep_s: Callable[[float], None],
        per_s: int = SENT_PER_S_MAX,
        on_failure: Callable[[LakeSyncError], None] = lambda _: None,
    ) -> None:
        self._sockets = sockets
        self._connections = connections
        self._seconds = seconds
        self._sleep_s = sleep_s
        self._per_s_max = self._per_s = float(per_s)
        self._on_failure = on_failure
        self._failure: LakeSyncError | None = None
        self._slow: dict[str, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._under_way: dict[str, list[str]] = {}
        """The connections to which a frame is under way, each with what was gathered meanwhile."""
        self._late: set[Future[None]] = set()

    def send(self, outgoing: Sequence[Outgoing], has_time: Callable[[], bool] = always) -> int:
        """Send frames to connections, in their order, while there is time.

        Returns:
            The number of connections served. A frame that failed for one of these is not sent
            again.
        """
        busy: list[Outgoing] = []
        sent = 0
        for at in range(0, len(outgoing), SLICE):
            began_s = self._seconds()
            some = outgoing[at : at + SLICE]
            results = self._sent(some, has_time)
            busy_before = len(busy)
            for each, result in zip(some, results, strict=False):
                if result is FrameResult.BUSY:
                    busy.append(each)
                elif self._slow:
                    self._slow.pop(each.connection.id, None)
            sent += len(results)
            if len(results) < len(some):
                break
            self._pace(len(busy) - busy_before, len(some))
            if sent < len(outgoing):
                self._sleep_s(max(len(some) / self._per_s - (self._seconds() - began_s), 0))
        if busy:
            is_account = len(busy) > max(BUSY_SHARE_MAX * sent, 1)
            self._poke(busy, has_time, is_account=is_account)
        self._report()
        return sent

    def drain(self) -> None:
        """Wait for the frames under way: a function that has answered is stopped."""
        self._late = wait(self._late, DRAIN_S_MAX).not_done
        self._report()

    def refuse(
        self,
        refused: Sequence[tuple[Connection, LakeSyncError]],
        has_time: Callable[[], bool] = always,
    ) -> int:
        """Send connections the reason, close and remove them, while there is time.

        Idempotent. Gives the number of connections reached.
        """
        done = len(self.side_by_side(self._refuse, refused, has_time))
        self._report()
        return done

    def forget(self, dead: Sequence[Connection], has_time: Callable[[], bool] = always) -> int:
        """Remove connections that no longer exist, while there is time; returns how many."""
        done = len(self.side_by_side(self._remove, dead, has_time))
        self._report()
        return done

    def side_by_side(
        self, act: Callable[[A], B], items: Sequence[A], has_time: Callable[[], bool] = always
    ) -> list[B]:
        """Process each of some items, several at once, while there is time.

        Gives the results of those that there was time for: the first ones, in order.
        """
        results: dict[int, B] = {}
        left = iter(enumerate(items))  # an iterator whose steps are shared by all threads

        def work() -> None:
            while has_time():
                step = next(left, None)
                if step is None:
                    return
                results[step[0]] = act(step[1])

        if items[1:]:
            self._run(work, min(SENDERS_MAX, len(items)))
        else:
            work()  # one needs no thread
        return [results[place] for place in range(len(results))]

    def _sent(self, some: Sequence[Outgoing], has_time: Callable[[], bool]) -> list[FrameResult]:
        """Send frames as `side_by_side` does, but wait for none that is late."""
        results: dict[int, FrameResult] = {}
        begun, left, is_last = itertools.count(), iter(enumerate(some)), threading.Event()

        def work() -> None:
            try:
                while has_time() and (step := next(left, None)):
                    if next(begun) + 1 == len(some):
                        is_last.set()
                    results[step[0]] = self._send(step[1])
            finally:
                is_last.set()

        if some:
            self._run(work, min(SENDERS_MAX, len(some)), is_last)
        return [results.get(place, FrameResult.SENT) for place in range(next(begun))]

    def _run(
        self, work: Callable[[], None], times: int, is_last: threading.Event | None = None
    ) -> None:
        """Run the work in so many threads at once; from an event on wait for none that is late."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SENDERS_MAX, "sockets")
        # One task for each sender: a task for each frame would cost more than the frame.
        tasks = [self._pool.submit(work) for _ in range(times)]
        if is_last is not None:
            is_last.wait()
            self._late = {each for each in self._late if not each.done()}
            self._late |= wait(tasks, LATE_S).not_done
        for task in tasks:
            if task not in self._late:
                task.result()

    def _pace(self, busy: int, sent: int) -> None:
        """Halve the rate while the account is busy, and then raise it gradually."""
        if busy > BUSY_SHARE_MAX * sent:
            self._per_s = max(self._per_s / 2, min(SENT_PER_S_MIN, self._per_s_max))
        else:
            self._per_s = min(self._per_s * 1.25, self._per_s_max)

    def _poke(
        self, busy: Sequence[Outgoing], has_time: Callable[[], bool], *, is_account: bool
    ) -> None:
        """Poke readers that had no room; close those that have been slow too often."""
        pokes = [(each.connection, each.poke) for each in busy]
        results = self.side_by_side(self._post, pokes, has_time)
        too_slow = []
        for each, result in zip(busy, results, strict=False):
            name = each.connection.id
            if result is not FrameResult.BUSY or is_account:
                continue
            self._slow[name] = self._slow.pop(name, 0) + 1
            if self._slow[name] >= SLOW_TIMES_MAX:
                del self._slow[name]
                reason: LakeSyncError = RateLimited("this reader is too slow; pull instead")
                too_slow.append((each.connection, reason))
        self.side_by_side(self._refuse, too_slow, has_time)
        while len(self._slow) > SLOW_REMEMBERED_MAX:
            del self._slow[next(iter(self._slow))]

    def _send(self, outgoing: Outgoing) -> FrameResult:
        """Post a frame, unless one is under way to its connection: then a poke follows that."""
        name, began_s = outgoing.connection.id, self._seconds()
        gathered: list[str] = []
        while (under_way := self._under_way.setdefault(name, gathered)) is not gathered:
            with self._lock:
                if self._under_way.get(name) is under_way:
                    under_way[:] = [outgoing.poke]
                    return FrameResult.SENT
        try:
            result = self._post((outgoing.connection, outgoing.frame))
            if result is FrameResult.BUSY and self._seconds() - began_s > LATE_S:
                gathered[:] = [outgoing.poke]  # nobody has waited for it, to poke its reader
        finally:
            with self._lock:
                del self._under_way[name]
        if gathered and result is not FrameResult.GONE:
            return self._post((outgoing.connection, gathered[0]))
        return result

    def _post(self, sent: tuple[Connection, str]) -> FrameResult:
        """Post a frame; remove a connection that is gone. Any failure counts as busy."""
        connection, frame = sent
        try:
            result = self._sockets.send(connection.id, frame)
        except LakeSyncError as error:
            self._failure = error
            return FrameResult.BUSY
        if result is FrameResult.GONE:
            self._remove(connection)
        return result

    def _refuse(self, refused: tuple[Connection, LakeSyncError]) -> None:
        connection, error = refused
        frames = frames_in(is_json=connection.is_json)
        reason = frames.encode_refusal(error, 0, closes=True)
        if self._post((connection, reason)) is FrameResult.GONE:
            return
        try:
            self._sockets.close(connection.id)
        except LakeSyncError as failure:
            self._failure = failure
            return  # it stays stored, and the sweep tries again
        self._remove(connection)

    def _remove(self, connection: Connection) -> None:
        try:
            self._connections.remove(connection.gateway, connection.id)
        except LakeSyncError as error:
            self._failure = error  # the next frame, or the sweep, will see again that it is gone

    def _report(self) -> None:
        if self._failure is not None:
            self._on_failure(self._failure)
            self._failure = None
