"""A job's share of a poll: the large tables, under the lease of the poll that requested it.

Rules of this module
    1. A cursor passes a stretch once that and all before it are durable. A killed job leaves the
       same state as any poll, and any poll continues from there.
    2. The lease is extended while stretches are read. If that fails, the job ends at once, long
       before another reader may begin.
    3. After one page as of any poll, the job reads only stretches. The rows after them, smaller
       tables, feeds and histories are one sequence, which a job does not read faster.

Law Y11: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.connectors.dead_letters import DeadLetters, counts_first
from lakesync.connectors.definition import definition_from
from lakesync.connectors.large import is_large
from lakesync.connectors.one_writer import OneWriter
from lakesync.connectors.poll import PAGE_ROWS_MAX
from lakesync.connectors.polls import Polls
from lakesync.connectors.port import FEED, Divisible, Stretch
from lakesync.connectors.reading import read_page
from lakesync.connectors.state import state_from
from lakesync.connectors.stretch import Work
from lakesync.connectors.taking import Taking
from lakesync.core.pace import JOB_ROWS_MAX
from lakesync.errors import Conflict, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.poll import Saves
    from lakesync.connectors.routes import Route
    from lakesync.connectors.state import PollState
    from lakesync.connectors.stretch import StretchRead
    from lakesync.ports import StoredConnector

STRETCH_ROWS: Final = 50_000
"""Rows of a stretch: what a task reads, some seconds to minutes."""
ONE_WRITE_STRETCHES: Final = JOB_ROWS_MAX // STRETCH_ROWS
"""Stretches that are one write, where a write is dear."""
JOB_LEASE_MS: Final = 120_000
"""How long a job's lease lasts; it is extended every few seconds."""


class ReadsStretches(Protocol):
    """Reads several stretches at once, each by `lakesync.connectors.stretch.read_whole`."""

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> Sequence[StretchRead]:
        """Return each one's result, in order; calls ``keep`` every few seconds meanwhile."""
        ...


class Brought(NamedTuple):
    """What a job did."""

    is_mine: bool
    """False if somebody else polls, or nobody is to: nothing was read."""
    rows: int = 0
    error: LakeSyncError | None = None


class LargePolls(Polls):
    """Takes over large polls, in a job; created as `Polls` is."""

    def take_over(
        self,
        gateway: str,
        name: str,
        lease: int,
        reads: ReadsStretches,
        at_once: int,
        has_time: Callable[[], bool],
    ) -> Brought:
        """Read the large tables of a poll; the functions do the rest.

        Args:
            gateway: the gateway's id.
            name: the connector's or flow's.
            lease: the lease that the poll handed over.
            reads: reads stretches.
            at_once: how many stretches it is given at a time.
            has_time: called before each time.
        """
        now_ms = self._wall_clock()
        if not self._is_wanted(gateway, name):
            return Brought(is_mine=False)
        leased = self._store.lease(gateway, name, now_ms, now_ms + JOB_LEASE_MS, lease)
        if leased is None:
            return Brought(is_mine=False)
        state = state_from(leased.state)
        before, save = state.rows, self._saving(gateway, leased, JOB_LEASE_MS)
        error = None

        def goes_on() -> bool:
            return has_time() and self._is_wanted(gateway, name)

        try:
            try:
                self._bring(gateway, leased, state, save, reads, at_once, goes_on)
            except Conflict:
                raise
            except LakeSyncError as failure:
                error = failure
                state.note(failure, self._wall_clock())
            if state.job_moved:
                state.job_ms = 0
            save(state, ends=True)
        except Conflict:
            return Brought(is_mine=False)  # another polls it, or it was removed
        return Brought(is_mine=True, rows=state.rows - before, error=error)

    def _is_wanted(self, gateway: str, name: str) -> bool:
        """Return whether it is to be polled: it may have been paused or removed."""
        stored = self._store.connector(gateway, name)
        return stored is not None and not definition_from(stored.definition).paused

    def _bring(
        self,
        gateway: str,
        leased: StoredConnector,
        state: PollState,
        save: Saves,
        reads: ReadsStretches,
        at_once: int,
        has_time: Callable[[], bool],
    ) -> None:
        name, storage = leased.name, self._storage(gateway, leased.name)
        route = self._route(gateway, name, definition_from(leased.definition), storage)
        with closing(route.connector), closing(route):
            letters = DeadLetters(storage, counts_first(state, save))
            for source in route.tables:
                if source in state.finished:
                    continue
                if source == FEED:
                    return  # what tables are to be is said there first
                work = Work(
                    gateway, name, leased.definition, source, state.begins(source), letters.names
                )
                taking = Taking(
                    name, route.push, letters, self._wall_clock, route.shape, route.pages
                )
                route.fence(route.tables[source])
                one = _LargeTable(route, work, letters, taking, save)
                reading, many = reads, at_once
                if route.job_rows:
                    reading, many = OneWriter(route, self._wall_clock), ONE_WRITE_STRETCHES
                one.bring(state, partial(reading, keep=partial(save, state)), many, has_time)


class _LargeTable:
    """The large part of one table."""

    def __init__(
        self, route: Route, work: Work, letters: DeadLetters, taking: Taking, save: Saves
    ) -> None:
        self._route = route
        self._work = work
        self._letters = letters
        self._taking = taking
        self._save = save

    def bring(
        self,
        state: PollState,
        reads: Callable[[Work, Sequence[Stretch]], Sequence[StretchRead]],
        at_once: int,
        has_time: Callable[[], bool],
    ) -> None:
        """Read its stretches, some at once, until less than one is left.

        Raises:
            LakeSyncError: one could not be read; progress up to it is saved.
        """
        source = self._work.source
        if not has_time() or not self._first_page(state):
            return
        if not is_large(self._route.connector, source, state, self._route.large_rows):
            return
        while has_time() and (stretches := self._next(state, at_once)):
            for stretch, read in zip(stretches, reads(self._work, stretches), strict=True):
                if read.error is not None:
                    self._save(state)
                    raise read.error
                self._note(read)
                state.rows += read.rows
                state.cursors[source] = stretch.ends
                state.job_moved = True
            state.dead_letters = len(self._letters)
            self._save(state)

    def _first_page(self, state: PollState) -> bool:
        """Read a page as any poll does; return whether there are more."""
        work, route = self._work, self._route
        read = read_page(
            route.connector, work.source, state.cursors.get(work.source, ""), route.tables,
            self._taking.client_id, PAGE_ROWS_MAX * route.pages, work.poll_ms,
        )  # fmt: skip
        if not read.has_more:
            return False  # the function reads that, and ends the table
        state.rows += self._taking.take(read, has_letters=bool(state.dead_letters))
        state.dead_letters = len(self._letters)
        state.cursors[work.source] = read.cursor
        self._save(state)
        return True

    def _next(self, state: PollState, at_once: int) -> list[Stretch]:
        connector, source = self._route.connector, self._work.source
        assert isinstance(connector, Divisible)  # noqa: S101 - nothing else is large
        cursor, stretches = state.cursors[source], list[Stretch]()
        while len(stretches) < at_once:
            rows = min(STRETCH_ROWS, self._route.large_rows)
            asked = connector.ahead(source, cursor, rows, poll_ms=self._work.poll_ms)
            stretch = asked.unwrap()
            if not stretch.ends:
                break
            stretches.append(stretch)
            cursor = stretch.ends
        if self._route.job_rows and stretches:
            return [Stretch(stretches[0].begins, stretches[-1].ends)]
        return stretches

    def _note(self, read: StretchRead) -> None:
        """Store dead letters of refused rows, and remove those of rows that were accepted since."""
        for table, row_id in read.accepted:
            self._letters.take_back(table, row_id)
        for letter in read.letters:
            self._letters.add(letter.table, letter.row_id, letter.error, letter.delta)
