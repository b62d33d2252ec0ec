"""The query by which a poll reads a table: started once, then read page by page.

Rules of this module
    1. Which query a poll reads is stored before it is started, with its beginning. So a page that
       is read twice is a page of the same query, with the same rows.
    2. A query that failed, or whose rows BigQuery no longer keeps, is forgotten, and the page is
       read of a new one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.bigquery.faults import is_missing
from lakesync.connectors.sql.catalogue import READ_S_MAX
from lakesync.connectors.storage import digest
from lakesync.errors import AdapterTimedOut, AdapterUnreachable, CursorExpired, LakeSyncError

if TYPE_CHECKING:
    from lakesync.adapters.bigquery import Jobs
    from lakesync.adapters.bigquery.looks import ReadRows
    from lakesync.connectors.bigquery.statements import Statement
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage

_FOLDER: Final = "jobs"


class StillRunning(Exception):
    """The query has no rows yet; the page is asked for again."""


class Begun(NamedTuple):
    """The query that a poll reads."""

    job: str
    location: str
    poll_ms: int
    begins: str
    """The cursor at which it begins."""
    reads: str
    """A digest of what it reads: other settings read by a query of their own."""
    reach: str = ""
    """The times that it reads, as `Reach.begun`."""


class Polling:
    """One table's query, of one poll after another.

    Args:
        jobs: the dataset.
        storage: the connector's.
        plan: how the table is read.
        location: where its queries run; empty if BigQuery determines it.
        bytes_billed_max: of one query.
    """

    def __init__(
        self, jobs: Jobs, storage: Storage, plan: Plan, location: str, bytes_billed_max: int
    ) -> None:
        self._jobs = jobs
        self._storage = storage
        settings = plan.settings
        self._path = (_FOLDER, digest(settings.name))
        columns = (settings.cursor_column or "", *plan.key, "", *plan.columns)
        self._reads = digest(settings.query or "", *columns)
        self._location = location
        self._bytes_billed_max = bytes_billed_max

    def begun(self, poll_ms: int) -> Begun | None:
        """Return the query of a poll; None if it began none."""
        stored = self._storage.read(*self._path)
        begun = Begun(**stored) if stored else None
        ours = (poll_ms, self._reads)
        return begun if begun and (begun.poll_ms, begun.reads) == ours else None

    def begin(self, statement: Statement, poll_ms: int, begins: str, reach: str = "") -> Begun:
        """Start the query of a poll."""
        job = f"lakesync_{uuid4().hex}"
        begun = Begun(job, self._location, poll_ms, begins, self._reads, reach)
        self._storage.write(begun._asdict(), *self._path)
        self._jobs.start(
            statement.text, statement.parameters, job_id=begun.job, location=begun.location,
            bytes_billed_max=self._bytes_billed_max,
        )  # fmt: skip
        return begun

    def rows(self, begun: Begun, start: int, rows_max: int) -> ReadRows:
        """Return rows of a query.

        Raises:
            StillRunning: it has none yet.
            CursorExpired: they are no longer kept, or it was never started.
        """
        try:
            read = self._jobs.rows(begun.job, begun.location, start, rows_max, READ_S_MAX)
        except LakeSyncError as error:
            if isinstance(error, AdapterUnreachable | AdapterTimedOut):
                raise
            with suppress(LakeSyncError):
                self._storage.remove(*self._path)
            if is_missing(error):
                raise CursorExpired(error.message) from error
            raise
        if read is None:
            raise StillRunning
        return read
