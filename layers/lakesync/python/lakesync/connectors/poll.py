"""One poll of a connector: page after page to deltas, pushed, then the cursor.

Rules of this module
    1. A cursor is saved after everything of its page is durable: accepted by the gateway, or a dead
       letter. Whoever is killed between is done again, with the same deltas.
    2. `PollState.poll_ms` is saved before the first page is read: what has no time of its own is
       stamped with it, also after a crash.
    3. One page is in memory, or a few where writes are dear, whatever the source holds.
    4. What is wrong with one row harms no other row; what is wrong with one table, no other table:
       the poll goes on without it, and the next reads it as of the poll whose page may be open.
    5. What is wrong with the source, its feed or the gateway stops everything at once.

Laws N1-N6: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.adapters.collector import collector_paused
from lakesync.connectors.large import is_large, may_ask
from lakesync.connectors.port import FEED
from lakesync.connectors.reading import Read, read_page
from lakesync.connectors.refusals import stops_all
from lakesync.connectors.taking import Taking
from lakesync.errors import InternalError, LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.dead_letters import DeadLetters
    from lakesync.connectors.port import Connector
    from lakesync.connectors.state import PollState
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.ports import WallClock

PAGE_ROWS_MAX: Final = 1_000
"""Rows that a connector is asked for at a time."""
WAIT_S_MAX: Final = 3_600
"""How long a source or the gateway is left alone, whatever it asks for."""
BACKOFF_S_MAX: Final = 300
"""How long it is left alone at most that asks for less, but fails again and again."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What became of a poll."""

    status: str
    """``done``: there is no more. ``more``: time was over. ``wait``: somebody asks for patience.
    ``large``: a job is to go on, by the lease that was saved for it."""
    wait_s: int = 0


class Saves(Protocol):
    """Makes the state durable."""

    def __call__(self, state: PollState, *, ends: bool = False) -> None:
        """Save it; if the poll ends here, others may poll from then on.

        Raises:
            Conflict: somebody else polls.
        """
        ...


class Poll:
    """Polls one connector.

    Args:
        name: the connector's, which says whose client it writes as.
        connector: what is read.
        tables: the source's tables in the order in which they are read, each with its name in the
            gateway; its feed first, if it has one.
        push: hands deltas over; raises `LakeSyncError`.
        letters: where rows go that are refused.
        save: makes the state durable.
        wall_clock: the time.
        shape: gives what of a page's deltas is pushed.
        pages: usual pages that are read, and pushed, at a time.
        large_rows: from how many rows ahead on a table is a job's; 0 for never.
        fence: makes sure that nothing of before is written any more to a table of the gateway.
        read_whole: notes that a table, by its name in the gateway, was read to its end.
        hand_over: makes the state durable for a job, which goes on.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        tables: Mapping[str, str],
        *,
        push: Callable[[Push], PushReceipt],
        letters: DeadLetters,
        save: Saves,
        wall_clock: WallClock,
        shape: Callable[[Sequence[Delta]], Sequence[Delta]] = list,
        pages: int = 1,
        large_rows: int = 0,
        fence: Callable[[str], object] = lambda _: None,
        read_whole: Callable[[str], object] = lambda _: None,
        hand_over: Callable[[PollState], None] = lambda _: None,
    ) -> None:
        self._taking = Taking(name, push, letters, wall_clock, shape, pages)
        self._connector = connector
        self._tables = tables
        self._letters = letters
        self._save = save
        self._wall_clock = wall_clock
        self._pages = pages
        self._large_rows = large_rows
        self._fence, self._goes_on = fence, False
        self._read_whole, self._hand_over = read_whole, hand_over
        self._unread: set[str] = set()
        self._moved: set[str] = set()

    def run(self, state: PollState, has_time: Callable[[], bool]) -> Polled:
        """Go on with the poll that is under way, or begin one, until its end or time is over.

        Args:
            state: how far it is; moved on, and saved with each page.
            has_time: asked before each page.

        Raises:
            Conflict: somebody else polls this connector; nothing more was saved.
        """
        self._goes_on = bool(state.poll_ms)
        if not state.poll_ms or set(self._tables) <= set(state.finished):
            self._begin(state)
        for source in self._tables:
            try:
                if status := self._table(state, source, has_time):
                    return Polled(status)
            except LakeSyncError as error:
                if stops_all(source, error):
                    return self._stopped(state, error)
                self._leave(state, source, error)
        return self._ended(state)

    def _begin(self, state: PollState) -> None:
        # After a clock that stepped back: a later poll is dated later.
        state.poll_ms = max(self._wall_clock(), state.polled_ms + 1, state.poll_ms + 1)
        state.finished, state.asked_s = [], 0
        self._unread = set(self._tables) - set(state.begun)
        self._save(state)

    def _ended(self, state: PollState) -> Polled:
        """End the poll: with all tables, or without those that are to be tried again soon."""
        if state.asked_s:
            return self._waits(state, state.asked_s)
        if state.fault and state.fault.at_ms < state.poll_ms:
            state.fault = None
        state.polled_ms, state.poll_ms, state.finished = state.poll_ms, 0, []
        state.wait_until_ms = state.failures = state.job_ms = 0
        state.polls += 1
        self._save(state, ends=True)
        return Polled("done")

    def _stopped(self, state: PollState, error: LakeSyncError) -> Polled:
        """Leave the poll where it is: it goes on there, after a while or once it is mended."""
        if error.code == "CONFLICT":
            raise error
        state.note(error, self._wall_clock())
        if error.retry is Retry.LATER:
            if self._moved:
                state.failures = 0
            return self._waits(state, error.retry_after_s)
        state.wait_until_ms = self._wall_clock()
        self._save(state, ends=True)
        return Polled("done")

    def _waits(self, state: PollState, asked_s: int) -> Polled:
        """Leave everything alone for so long as is asked for, and longer each time in a row."""
        backoff_s = min(2 ** min(state.failures, 16), BACKOFF_S_MAX)
        state.failures += 1
        wait_s = min(max(asked_s, backoff_s), WAIT_S_MAX)
        state.wait_until_ms = self._wall_clock() + wait_s * 1000
        self._save(state, ends=True)
        return Polled("wait", wait_s)

    def _leave(self, state: PollState, source: str, error: LakeSyncError) -> None:
        """Go on without a table, which keeps its poll if a page of it may be open."""
        is_later = error.retry is Retry.LATER
        if is_later:
            state.asked_s = max(state.asked_s, error.retry_after_s, 1)
            if source in self._moved:
                state.failures = 0
        # Nothing was read of a table that is refused at once: there is nothing to be given again.
        if source not in self._unread or is_later or isinstance(error, InternalError):
            state.begun.setdefault(source, state.poll_ms)
        state.note(error, self._wall_clock(), source)
        state.finished.append(source)
        self._save(state)

    def _table(self, state: PollState, source: str, has_time: Callable[[], bool]) -> str:
        """Read a table to its end; returns the poll's status if it stops before that."""
        may_ask_job = may_ask(state, self._wall_clock())
        needs_fence = self._goes_on or source in state.begun
        while source not in state.finished:
            if not has_time():
                return "more"
            if needs_fence:  # a page follows at once, however long this takes: each call gets on
                self._fence_tables(source)
                needs_fence = False
            with collector_paused():
                moved_on = self._moved_on(state, source)
            if moved_on:
                self._save(state)
                self._moved.add(source)
            if may_ask_job and source not in state.finished:
                may_ask_job = False
                if is_large(self._connector, source, state, self._large_rows):
                    state.job_ms, state.job_moved = self._wall_clock(), False
                    self._hand_over(state)
                    return "large"
        return ""

    def _fence_tables(self, source: str) -> None:
        """Fence a table of the source, or all tables if it is the feed, which changes them all."""
        sources = [source] if source != FEED else [name for name in self._tables if name != FEED]
        for name in sources:
            self._fence(self._tables[name])

    def _moved_on(self, state: PollState, source: str) -> bool:
        """Take a table's next page; False if nothing would be lost with the state of now."""
        read = read_page(
            self._connector, source, state.cursors.get(source, ""), self._tables,
            self._taking.client_id, PAGE_ROWS_MAX * self._pages, state.begins(source),
        )  # fmt: skip
        self._unread.discard(source)
        self._take(state, read)
        state.cursors[source] = read.cursor
        if not read.has_more:
            state.finished.append(source)
            state.begun.pop(source, None)
            if source != FEED:
                self._read_whole(self._tables[source])
        return bool(read.has_more or read.deltas or read.refused)

    def _take(self, state: PollState, read: Read) -> None:
        """Make all of a page durable: accepted, or a dead letter."""
        state.rows += self._taking.take(read, has_letters=bool(state.dead_letters))
        # Who died after he took one back left it counted.
        if self._letters.changed or (state.dead_letters and read.deltas):
            state.dead_letters = len(self._letters)
        if read.report:
            state.source = read.report
