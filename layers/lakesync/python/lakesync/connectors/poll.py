"""One poll of a connector: each page becomes deltas, which are pushed; then the cursor is saved.

A route says from where to where a poll moves rows: a connector's into its gateway, a flow's as it
declares. A flow is registered as a connector of the type `FLOW` (`lakesync.core.flows`); how it is
carried out is said by whoever knows flows.

This module decides who reads a table: a function page by page, or, if it is large, a job in
stretches. It is asked once a poll has read a table's first page and there is more. The job, too,
reads only what is assigned to it here.

Rules of large tables
    1. A table is large if at least a given number of rows is unread, counted along the index by
       which it is read. A source that cannot be divided is never large: it is one sequence for any
       reader.
    2. If a requested job brought nothing, it is not requested again in the same poll, or for six
       hours. Meanwhile the function reads the table, for example if the job lacks a permission.

Rules of polls
    1. A cursor is saved after everything of its page is durable: accepted by the gateway, or a dead
       letter. After a crash in between, the page is read again, with the same deltas.
    2. `PollState.poll_ms` is saved before the first page is read: changes without a time of their
       own are stamped with it, also after a crash.
    3. One page is in memory, or a few if writes are expensive, however large the source is.
    4. A fault of one row affects no other row. A fault of one table affects no other table: the
       poll continues without it, and the next poll reads it with the `poll_ms` of the poll that may
       have pushed part of a page.
    5. A fault of the source, its feed or the gateway ends the poll at once.

Laws N1-N6: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.adapters.ledger_database import collector_paused
from lakesync.connectors.pages import client_id_of, pushes_of, read_page, refused_in, stops_all
from lakesync.connectors.port import FEED, Divisible, Stretch
from lakesync.core.clock import doubled
from lakesync.core.delta import Op
from lakesync.core.messages import Push
from lakesync.errors import InternalError, LakeSyncError, Retry
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.pages import Read
    from lakesync.connectors.port import Connector, Storage
    from lakesync.connectors.registry import Definition
    from lakesync.connectors.state import DeadLetters, Deletions, PollState
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import WallClock

# --- routes ---------------------------------------------------------------------------------------


def _nothing() -> None:
    """Close nothing."""


class Route(NamedTuple):
    """What one poll reads, and what becomes of it."""

    connector: Connector
    tables: Mapping[str, str]
    """The source's tables in the order in which they are read, each with its name here."""
    push: Callable[[Push], PushReceipt]
    """Makes deltas durable; raises `lakesync.errors.LakeSyncError`."""
    shape: Callable[[Sequence[Delta]], Sequence[Delta]] = list
    """Gives what of a page's deltas goes on."""
    pages: int = 1
    """Usual pages that are read, and pushed, at a time: more where each write is dear."""
    close: Callable[[], None] = _nothing
    """Closes the destination."""
    large_rows: int = 0
    """From how many rows ahead on a table is read by a job; 0 for never."""
    job_rows: int = 0
    """Rows that a job writes at a time, all by one writer; 0 where its tasks write side by side."""
    fence: Callable[[str], object] = lambda _: None
    """Makes sure that nothing of before is written any more to a table, by its name here: by a
    writer that died, whose last statement may be under way. Raises `LakeSyncError`."""
    read_whole: Callable[[str], object] = lambda _: None
    """Notes that a table, by its name here, was read to its end, and all of it is durable."""


class MakesRoutes(Protocol):
    """Knows how flows are carried out."""

    def elsewhere(self, definition: Definition) -> str:
        """Return where something is polled (`lakesync.core.flows.Flow.place`); empty if here."""
        ...

    def route(self, gateway: str, name: str, definition: Definition, storage: Storage) -> Route:
        """Return the route of a flow.

        Raises:
            LakeSyncError: its source or its destination cannot be made.
        """
        ...


# --- large tables ---------------------------------------------------------------------------------


JOB_START_MS: Final = 900_000
"""How long a job may take to start after it is requested; then a function goes on."""
JOB_AGAIN_MS: Final = 6 * 3_600_000
"""After so long it is tried again whether a job gets on."""


def may_ask(state: PollState, now_ms: int) -> bool:
    return not state.job_ms or state.job_moved or now_ms - state.job_ms >= JOB_AGAIN_MS


def is_large(connector: Connector, source: str, state: PollState, rows_min: int) -> bool:
    """Return whether the rest of a table is read by a job.

    Args:
        connector: the source. If it fails to answer here, the table is read page by page, which may
            show the reason.
        source: its table, of which a page was read.
        rows_min: from how many unread rows on a job reads it; 0 for never.
    """
    if not rows_min or not isinstance(connector, Divisible):
        return False
    cursor, poll_ms = state.cursors[source], state.begins(source)
    match connector.ahead(source, cursor, rows_min, poll_ms=poll_ms):
        case Ok(Stretch(_, ends)):
            return bool(ends)
        case _:
            return False


# --- pushing --------------------------------------------------------------------------------------


class Letters(Protocol):
    """Where rows go that are refused."""

    def add(self, table: str, row_id: str, error: LakeSyncError, delta: Delta | None) -> None:
        """Store a row with the reason, in place of its former dead letter."""
        ...

    def take_back(self, table: str, row_id: str) -> None:
        """Remove the dead letter of a row, because it was accepted since."""
        ...


class PagePusher:
    """Pushes the pages of one connector.

    Args:
        name: the connector's, which determines the client that it writes as.
        route: says what is pushed of a page, and where.
        letters: the dead letters, for refused rows.
    """

    def __init__(self, name: str, route: Route, letters: Letters, wall_clock: WallClock) -> None:
        self.client_id = client_id_of(name)
        self._route = route
        self._letters = letters
        self._wall_clock = wall_clock

    def push(self, read: Read, *, has_letters: bool) -> int:
        """Make all of a page durable; returns how many rows were pushed.

        Args:
            has_letters: whether there are dead letters, which may be withdrawn.
        """
        for row_id, error, table in read.refused:
            self._letters.add(table, row_id, error, None)
        rows, shaped = 0, self._route.shape(read.deltas)
        if has_letters:
            self._withdraw(read, shaped)
        for part in pushes_of(shaped, self._route.pages):
            self._hand_over(part, has_letters=has_letters)
            rows += len(part)
        return rows

    def _withdraw(self, read: Read, shaped: Sequence[Delta]) -> None:
        """Remove the dead letters of rows of which nothing is delivered any more.

        Before the push: some deletions are found from the rows that are at the destination, and
        are not found again once they are durable.
        """
        stays = {(table, row_id) for row_id, _, table in read.refused}
        stays |= {(one.table, one.row_id) for one in shaped if one.op is not Op.DELETE}
        for table, row_id in {(one.table, one.row_id): None for one in read.deltas}:
            if (table, row_id) not in stays:
                self._letters.take_back(table, row_id)

    def _hand_over(self, deltas: Sequence[Delta], *, has_letters: bool) -> None:
        push = Push(self.client_id, tuple(enumerate(deltas)), trusted=True)
        receipt = self._route.push(push)
        refused = refused_in(receipt, deltas, self._wall_clock())
        for index, delta in enumerate(deltas):
            if index in refused:
                self._letters.add(delta.table, delta.row_id, refused[index], delta)
            elif has_letters:
                self._letters.take_back(delta.table, delta.row_id)


# --- a poll ---------------------------------------------------------------------------------------


PAGE_ROWS_MAX: Final = 1_000
"""Rows that are requested of a connector at a time."""
WAIT_S_MAX: Final = 3_600
"""The maximum wait for a source or the gateway, whatever it asks for."""
BACKOFF_S_MAX: Final = 300
"""The maximum wait after repeated failures that ask for less."""


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a call of `Poll.run`."""

    status: str
    """``done``: the poll has ended. ``more``: time ran out. ``wait``: the source or the gateway
    asks to wait. ``large``: a job continues, with the lease that was saved for it."""
    wait_s: int = 0


class Saves(Protocol):
    """Saves the state of the poll."""

    def __call__(self, state: PollState, *, ends: bool = False) -> None:
        """Save the state; with ``ends``, the lease ends too, and others may poll.

        Raises:
            Conflict: another process polls.
        """
        ...


class Poll:
    """Polls one connector.

    Args:
        name: the connector's, which determines the client that it writes as.
        route: what is read, and what becomes of it; its feed is the first table, if it has one.
        letters: the dead letters, for refused rows.
        deletions: the deletions that were found by comparing.
        hand_over: saves the state for a job, which continues.
    """

    def __init__(
        self,
        name: str,
        route: Route,
        *,
        letters: DeadLetters,
        deletions: Deletions,
        save: Saves,
        wall_clock: WallClock,
        hand_over: Callable[[PollState], None] = lambda _: None,
    ) -> None:
        self._pusher = PagePusher(name, route, letters, wall_clock)
        self._route = route
        self._tables = route.tables
        self._letters = letters
        self._deletions = deletions
        self._save = save
        self._wall_clock = wall_clock
        self._hand_over = hand_over
        self._goes_on = False
        self._unread: set[str] = set()
        self._moved: set[str] = set()

    def run(self, state: PollState, has_time: Callable[[], bool]) -> Polled:
        """Continue the current poll, or begin one, until it ends or time runs out.

        Args:
            state: the state of the poll; updated and saved with each page.

        Raises:
            Conflict: another process polls this connector; nothing more was saved.
        """
        self._goes_on = bool(state.poll_ms)
        if state.dead_letters and (self._goes_on or state.begun):
            # It may include letters that were removed before a crash or a fault.
            state.dead_letters = len(self._letters)
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
        # A later poll has a later time, even if the clock has stepped back.
        state.poll_ms = max(self._wall_clock(), state.polled_ms + 1, state.poll_ms + 1)
        state.finished, state.asked_s = [], 0
        self._unread = set(self._tables) - set(state.begun)
        self._save(state)

    def _ended(self, state: PollState) -> Polled:
        """End the poll: with all tables, or without those that are to be retried soon."""
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
        """Stop the poll; it continues here later, or once the fault is repaired."""
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
        """Wait for as long as is asked for, and longer after each failure in a row."""
        backoff_s = doubled(1, BACKOFF_S_MAX, state.failures)
        state.failures += 1
        wait_s = min(max(asked_s, backoff_s), WAIT_S_MAX)
        state.wait_until_ms = self._wall_clock() + wait_s * 1000
        self._save(state, ends=True)
        return Polled("wait", wait_s)

    def _leave(self, state: PollState, source: str, error: LakeSyncError) -> None:
        """Continue without a table; it keeps its `poll_ms` if part of a page may be pushed."""
        is_later = error.retry is Retry.LATER
        if is_later:
            state.asked_s = max(state.asked_s, error.retry_after_s, 1)
            if source in self._moved:
                state.failures = 0
        # If a table is refused at once, nothing of it was pushed, and nothing needs the same times.
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
                if is_large(self._route.connector, source, state, self._route.large_rows):
                    state.job_ms, state.job_moved = self._wall_clock(), False
                    self._hand_over(state)
                    return "large"
        return ""

    def _fence_tables(self, source: str) -> None:
        """Fence a table of the source, or all tables if it is the feed, which changes them all."""
        sources = [source] if source != FEED else [name for name in self._tables if name != FEED]
        for name in sources:
            self._route.fence(self._tables[name])

    def _moved_on(self, state: PollState, source: str) -> bool:
        """Process a table's next page; return False if the state need not be saved."""
        poll_ms = state.begins(source)
        read = read_page(
            self._route.connector.read, source, state.cursors.get(source, ""), self._tables,
            self._pusher.client_id, PAGE_ROWS_MAX * self._route.pages, poll_ms,
            lambda page: self._deletions.dated(state, source, page, poll_ms),
        )  # fmt: skip
        self._unread.discard(source)
        self._take(state, read)
        state.cursors[source] = read.cursor
        if not read.has_more:
            state.finished.append(source)
            state.begun.pop(source, None)
            if source != FEED:
                self._route.read_whole(self._tables[source])
        return bool(read.has_more or read.deltas or read.refused)

    def _take(self, state: PollState, read: Read) -> None:
        """Push a page: each row is accepted, or becomes a dead letter."""
        state.rows += self._pusher.push(read, has_letters=bool(state.dead_letters))
        if self._letters.changed or (state.dead_letters and read.deltas):
            state.dead_letters = len(self._letters)
        if read.report:
            state.source = read.report
