"""A job's share of a poll: the large tables, under the lease of the poll that requested it.

Rules of this module
    1. A cursor passes a stretch once that and all before it are durable. A killed job leaves the
       same state as any poll, and any poll continues from there.
    2. The lease is extended while stretches are read. If that fails, the job ends at once, long
       before another reader may begin.
    3. After one page as of any poll, the job reads only stretches. The rows after them, smaller
       tables, feeds and histories are one sequence, which a job does not read faster.

Reads one stretch of a table to its end: the work of a job's task. The pages are those of a poll,
made durable by the same code, so rows that both read give the same deltas. An unreachable, slow or
full system is waited for. No cursor is saved here: the caller that assigned the stretch moves the
cursor once all of it is durable.

Reads a job's stretches where writes are expensive: one writer, and few large writes. On S3 and in
Iceberg a write rewrites the files of its rows, and in BigQuery it runs jobs, so many rows cost
about as much as few. Pages are read as usual, gathered, and pushed together.

Law Y11: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from lakesync.connectors.pages import Read, client_id_of, read_page
from lakesync.connectors.poll import PAGE_ROWS_MAX, PagePusher, is_large
from lakesync.connectors.polls import Polls
from lakesync.connectors.port import FEED, Divisible, Stretch, digest
from lakesync.connectors.registry import definition_from
from lakesync.connectors.state import (
    CONNECTOR_DEAD_LETTERS_MAX,
    DeadLetters,
    counts_first,
    state_from,
)
from lakesync.core.clock import doubled
from lakesync.core.deliveries import JOB_BYTES_MAX, JOB_ROWS_MAX
from lakesync.errors import AdapterRefused, Conflict, InternalError, LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.poll import Route, Saves
    from lakesync.connectors.state import PollState
    from lakesync.core.delta import Delta
    from lakesync.ports import StoredConnector, WallClock

STRETCH_ROWS: Final = 50_000
"""Rows of a stretch: what a task reads, some seconds to minutes."""
ONE_WRITE_STRETCHES: Final = JOB_ROWS_MAX // STRETCH_ROWS
"""Stretches that are one write, where a write is dear."""
JOB_LEASE_MS: Final = 120_000
"""How long a job's lease lasts; it is extended every few seconds."""


class ReadsStretches(Protocol):
    """Reads several stretches at once, each by `read_stretch`."""

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> Sequence[StretchRead]:
        """Return each one's result, in order; calls ``keep`` every few seconds meanwhile."""
        ...


class JobResult(NamedTuple):
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
    ) -> JobResult:
        """Read the large tables of a poll; the functions do the rest.

        Args:
            name: the connector's or flow's.
            lease: the lease that the poll handed over.
            at_once: how many stretches it is given at a time.
        """
        now_ms = self._wall_clock()
        if not self._is_wanted(gateway, name):
            return JobResult(is_mine=False)
        leased = self._store.lease(gateway, name, now_ms, now_ms + JOB_LEASE_MS, lease)
        if leased is None:
            return JobResult(is_mine=False)
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
            return JobResult(is_mine=False)  # another polls it, or it was removed
        return JobResult(is_mine=True, rows=state.rows - before, error=error)

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
                pusher = PagePusher(name, route, letters, self._wall_clock)
                route.fence(route.tables[source])
                one = _LargeTable(route, work, letters, pusher, save)
                reading, many = reads, at_once
                if route.job_rows:
                    reading, many = OneWriter(route, self._wall_clock), ONE_WRITE_STRETCHES
                one.bring(state, partial(reading, keep=partial(save, state)), many, has_time)


class _LargeTable:
    """The large part of one table."""

    def __init__(
        self, route: Route, work: Work, letters: DeadLetters, pusher: PagePusher, save: Saves
    ) -> None:
        self._route = route
        self._work = work
        self._letters = letters
        self._pusher = pusher
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
        work, route = self._work, self._route
        read = read_page(
            route.connector.read, work.source, state.cursors.get(work.source, ""), route.tables,
            self._pusher.client_id, PAGE_ROWS_MAX * route.pages, work.poll_ms,
        )  # fmt: skip
        if not read.has_more:
            return False  # the function reads that, and ends the table
        state.rows += self._pusher.push(read, has_letters=bool(state.dead_letters))
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


# --- stretches ------------------------------------------------------------------------------------


T = TypeVar("T")

PATIENCE_S_MAX: Final = 900
"""How long a task waits for one page at the most, in all."""
_WAIT_S_MAX: Final = 60


class Work(NamedTuple):
    """Of what a stretch is; sent to tasks, without secrets."""

    gateway: str
    name: str
    """The connector's."""
    definition: bytes
    """As `lakesync.connectors.registry.Definition.to_json` wrote it."""
    source: str
    """The table's name at the source."""
    poll_ms: int
    known: frozenset[str]
    """The names of the dead letters that there are."""


class Letter(NamedTuple):
    """A row that was refused."""

    table: str
    row_id: str
    error: LakeSyncError
    delta: Delta | None


class StretchRead(NamedTuple):
    """What became of a stretch."""

    rows: int
    """Rows that were pushed, deletions included."""
    letters: tuple[Letter, ...] = ()
    accepted: tuple[tuple[str, str], ...] = ()
    """Table and id of those rows that have a dead letter no more."""
    error: LakeSyncError | None = None
    """Why it was not read to its end."""


class StretchLetters:
    """Dead letters of a stretch, which are stored later: before the cursor passes it."""

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self.kept: dict[tuple[str, str], Letter] = {}
        self.accepted: set[tuple[str, str]] = set()

    def of(self, rows: int) -> StretchRead:
        """Return the outcome of the stretch, of which so many rows were pushed."""
        return StretchRead(rows, tuple(self.kept.values()), tuple(self.accepted))

    def add(self, table: str, row_id: str, error: LakeSyncError, delta: Delta | None) -> None:
        self.accepted.discard((table, row_id))
        self.kept[table, row_id] = Letter(table, row_id, error, delta)
        if len(self.kept) > CONNECTOR_DEAD_LETTERS_MAX:
            raise AdapterRefused(
                f"more than {CONNECTOR_DEAD_LETTERS_MAX} rows were refused, the last because "
                f"{error.message}: mend what refuses them, then reset the connector"
            )

    def take_back(self, table: str, row_id: str) -> None:
        """Note that a row was accepted since, if it was ever refused."""
        self.kept.pop((table, row_id), None)
        if digest(table, row_id) in self._known:
            self.accepted.add((table, row_id))


def read_stretch(
    route: Route,
    work: Work,
    stretch: Stretch,
    wall_clock: WallClock,
    sleep: Callable[[float], object] = time.sleep,
) -> StretchRead:
    """Read a stretch to its end, in few writes if they are dear. Safe to repeat, and to kill.

    Args:
        route: the source and the destination, with separate connections.
        work: the table and the poll that it belongs to.
        sleep: lets seconds pass.
    """
    letters = StretchLetters(work.known)
    pages = route.job_rows // PAGE_ROWS_MAX or route.pages
    pusher = PagePusher(work.name, route._replace(pages=pages), letters, wall_clock)
    cursor, rows = stretch.begins, 0
    try:
        while cursor != stretch.ends:
            read = _gathered(route, work, Stretch(cursor, stretch.ends), sleep)
            has_letters = bool(work.known or letters.kept)
            rows += patient(partial(pusher.push, read, has_letters=has_letters), sleep)
            cursor = read.cursor
    except LakeSyncError as error:
        return StretchRead(rows, error=error)
    return letters.of(rows)


def _gathered(route: Route, work: Work, stretch: Stretch, sleep: Callable[[float], object]) -> Read:
    """Return pages of a stretch as one: up to its end, or as much as one write is to have."""
    if not isinstance(route.connector, Divisible):
        raise InternalError(f"{work.source} is not read in stretches")
    reads = partial(route.connector.read_stretch, ends=stretch.ends)
    bytes_max = JOB_BYTES_MAX if route.job_rows else 1
    whole, size = Read([], [], stretch.begins, has_more=True, report={}), 0
    while whole.cursor != stretch.ends and size < bytes_max:
        page = partial(
            read_page, reads, work.source, whole.cursor, route.tables, client_id_of(work.name),
            PAGE_ROWS_MAX * route.pages, work.poll_ms,
        )  # fmt: skip
        read = patient(page, sleep)
        size += sum(len(value) for delta in read.deltas for _, value in delta.columns)
        whole.deltas.extend(read.deltas)
        whole.refused.extend(read.refused)
        whole = whole._replace(cursor=read.cursor if read.has_more else stretch.ends)
    return whole


def patient(act: Callable[[], T], sleep: Callable[[float], object]) -> T:
    """Do something again for as long as somebody asks for patience."""
    waited_s, failures = 0, 0
    while True:
        try:
            return act()
        except LakeSyncError as error:
            wait_s = min(max(error.retry_after_s, doubled(1, _WAIT_S_MAX, failures)), _WAIT_S_MAX)
            if error.retry is not Retry.LATER or waited_s + wait_s > PATIENCE_S_MAX:
                raise
        sleep(wait_s)
        waited_s, failures = waited_s + wait_s, failures + 1


# --- one writer -----------------------------------------------------------------------------------


KEEP_S: Final = 15
"""The interval of renewals of the lease: an eighth of its duration."""


class OneWriter:
    """`lakesync.connectors.large_polls.ReadsStretches` by this process: one stretch at a time.

    Args:
        keep_s: the interval of renewals of the lease.
    """

    def __init__(self, route: Route, wall_clock: WallClock, keep_s: float = KEEP_S) -> None:
        self._route = route
        self._wall_clock = wall_clock
        self._keep_s = keep_s

    def __call__(
        self, work: Work, stretches: Sequence[Stretch], keep: Callable[[], None]
    ) -> Sequence[StretchRead]:
        """Read stretches one after another; returns at once if the lease is lost.

        A write in flight then still completes. It is one commit, so a later reader is not
        disturbed.
        """
        ended = threading.Event()

        def sleep(seconds: float) -> None:
            if ended.wait(seconds):
                raise Conflict("another process polls this flow")

        def read_all() -> list[StretchRead]:
            return [
                read_stretch(self._route, work, one, self._wall_clock, sleep) for one in stretches
            ]

        with ThreadPoolExecutor(1) as beside:
            reading = beside.submit(read_all)
            try:
                while not wait([reading], timeout=self._keep_s).done:
                    keep()
            except BaseException:
                ended.set()
                raise
        return reading.result()
