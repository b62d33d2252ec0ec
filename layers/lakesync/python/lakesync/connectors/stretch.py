"""Reads one stretch of a table to its end: the work of a job's task.

The pages are those of a poll, made durable by the same code, so rows that both read give the same
deltas. An unreachable, slow or full system is waited for. No cursor is saved here: the caller that
assigned the stretch moves the cursor once all of it is durable.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lakesync.connectors.dead_letters import CONNECTOR_DEAD_LETTERS_MAX
from lakesync.connectors.deltas import client_id_of
from lakesync.connectors.poll import PAGE_ROWS_MAX
from lakesync.connectors.port import Divisible
from lakesync.connectors.reading import read_page
from lakesync.connectors.storage import digest
from lakesync.connectors.taking import Taking
from lakesync.errors import AdapterRefused, InternalError, LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.port import SourcePage, Stretch
    from lakesync.connectors.routes import Route
    from lakesync.core.delta import Delta
    from lakesync.ports import WallClock
    from lakesync.result import Result

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
    """As `lakesync.connectors.definition.Definition.to_json` wrote it."""
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
        """Keep a row with its reason."""
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


class StretchPages:
    """Reads a connector up to a stretch's end; see `lakesync.connectors.reading`."""

    def __init__(self, connector: Divisible, ends: str) -> None:
        self._connector = connector
        self._ends = ends

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of the stretch."""
        return self._connector.read_stretch(
            table, cursor, self._ends, rows_max=rows_max, poll_ms=poll_ms
        )


def read_whole(
    route: Route,
    work: Work,
    stretch: Stretch,
    wall_clock: WallClock,
    sleep: Callable[[float], object] = time.sleep,
) -> StretchRead:
    """Read a stretch to its end. Safe to repeat, and to kill.

    Args:
        route: the source and the destination, with separate connections.
        work: the table and the poll that it belongs to.
        stretch: its cursors.
        wall_clock: the time.
        sleep: lets seconds pass.
    """
    letters = StretchLetters(work.known)
    taking = Taking(work.name, route.push, letters, wall_clock, route.shape, route.pages)
    cursor, rows = stretch.begins, 0
    try:
        if not isinstance(route.connector, Divisible):
            raise InternalError(f"{work.source} is not read in stretches")
        pages = StretchPages(route.connector, stretch.ends)
        while cursor != stretch.ends:
            page = partial(_page, pages, route, work, taking, cursor, stretch.ends, letters)
            cursor, pushed = patient(page, sleep)
            rows += pushed
    except LakeSyncError as error:
        return StretchRead(rows, error=error)
    return letters.of(rows)


def _page(
    pages: StretchPages,
    route: Route,
    work: Work,
    taking: Taking,
    cursor: str,
    ends: str,
    letters: StretchLetters,
) -> tuple[str, int]:
    """Make a page durable; returns the next cursor, and how many rows were pushed."""
    read = read_page(
        pages, work.source, cursor, route.tables, client_id_of(work.name),
        PAGE_ROWS_MAX * route.pages, work.poll_ms,
    )  # fmt: skip
    pushed = taking.take(read, has_letters=bool(work.known or letters.kept))
    return read.cursor if read.has_more else ends, pushed


def patient(act: Callable[[], T], sleep: Callable[[float], object]) -> T:
    """Do something again for as long as somebody asks for patience."""
    waited_s, failures = 0, 0
    while True:
        try:
            return act()
        except LakeSyncError as error:
            wait_s = min(max(error.retry_after_s, 2**failures), _WAIT_S_MAX)
            if error.retry is not Retry.LATER or waited_s + wait_s > PATIENCE_S_MAX:
                raise
        sleep(wait_s)
        waited_s, failures = waited_s + wait_s, min(failures + 1, 6)
