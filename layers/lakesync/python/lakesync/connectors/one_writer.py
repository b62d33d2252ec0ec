"""Reads a job's stretches where writes are expensive: one writer, and few large writes.

On S3 and in Iceberg a write rewrites the files of its rows, and in BigQuery it runs jobs, so many
rows cost about as much as few. Pages are read as usual, gathered, and pushed together.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.connectors.deltas import client_id_of
from lakesync.connectors.poll import PAGE_ROWS_MAX
from lakesync.connectors.port import Divisible, Stretch
from lakesync.connectors.reading import Read, read_page
from lakesync.connectors.stretch import StretchLetters, StretchPages, StretchRead, patient
from lakesync.connectors.taking import Taking
from lakesync.core.pace import JOB_BYTES_MAX
from lakesync.errors import Conflict, InternalError, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.routes import Route
    from lakesync.connectors.stretch import Work
    from lakesync.ports import WallClock

KEEP_S: Final = 15
"""The interval of renewals of the lease: an eighth of its duration."""


class OneWriter:
    """`lakesync.connectors.large_polls.ReadsStretches` by this process: one stretch at a time.

    Args:
        route: the source and the destination.
        wall_clock: the time.
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
                read_gathered(self._route, work, one, self._wall_clock, sleep) for one in stretches
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


def read_gathered(
    route: Route,
    work: Work,
    stretch: Stretch,
    wall_clock: WallClock,
    sleep: Callable[[float], object],
) -> StretchRead:
    """Read a stretch to its end, in few writes. Safe to repeat, and to kill.

    Args:
        route: the source and the destination.
        work: the table and the poll that it belongs to.
        stretch: its cursors.
        wall_clock: the time.
        sleep: waits for a number of seconds.
    """
    letters = StretchLetters(work.known)
    pages = route.job_rows // PAGE_ROWS_MAX
    taking = Taking(work.name, route.push, letters, wall_clock, route.shape, pages)
    cursor, rows = stretch.begins, 0
    try:
        while cursor != stretch.ends:
            read = _gathered(route, work, Stretch(cursor, stretch.ends), sleep)
            has_letters = bool(work.known or letters.kept)
            rows += patient(partial(taking.take, read, has_letters=has_letters), sleep)
            cursor = read.cursor
    except LakeSyncError as error:
        return StretchRead(rows, error=error)
    return letters.of(rows)


def _gathered(route: Route, work: Work, stretch: Stretch, sleep: Callable[[float], object]) -> Read:
    """Return pages of a stretch as one: up to its end, or as much as memory allows."""
    if not isinstance(route.connector, Divisible):
        raise InternalError(f"{work.source} is not read in stretches")
    pages, client_id = StretchPages(route.connector, stretch.ends), client_id_of(work.name)
    whole, size = Read([], [], stretch.begins, has_more=True, report={}), 0
    while whole.cursor != stretch.ends and size < JOB_BYTES_MAX:
        page = partial(
            read_page, pages, work.source, whole.cursor, route.tables, client_id,
            PAGE_ROWS_MAX * route.pages, work.poll_ms,
        )  # fmt: skip
        read = patient(page, sleep)
        size += sum(len(value) for delta in read.deltas for _, value in delta.columns)
        cursor = read.cursor if read.has_more else stretch.ends
        whole.deltas.extend(read.deltas)
        whole.refused.extend(read.refused)
        whole = whole._replace(cursor=cursor)
    return whole
