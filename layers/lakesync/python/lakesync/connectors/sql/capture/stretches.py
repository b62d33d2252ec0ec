"""Stretches of a captured table's first read: between two keys, all as of its baseline."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from lakesync.connectors.port import FEED, SourcePage, Stretch
from lakesync.connectors.sql.capture import snapshot
from lakesync.connectors.sql.source import SqlConnector
from lakesync.errors import AdapterFailed
from lakesync.result import Ok

if TYPE_CHECKING:
    from lakesync.connectors.sql.capture.kept import Baseline
    from lakesync.connectors.sql.plan import Plan
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


class SnapshotConnector(SqlConnector):
    """A connector whose feed is one sequence, and whose tables are first read whole."""

    @abstractmethod
    def _marked(self, cursor: Any, name: str) -> tuple[Plan, Baseline] | None:
        """Return how a table is read whole, and its baseline; None if it need not be read.

        Raises:
            AdapterRefused, ValidationFailed: it cannot be read.
        """

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table that is being read whole; the feed is not divided."""
        del poll_ms
        if table == FEED:
            return Ok(Stretch(cursor, ""))

        def work(connected: Any) -> Stretch:
            marked = self._marked(connected, table)
            if marked is None:
                return Stretch(cursor, "")
            return snapshot.ahead(connected, self._database.dialect, *marked, cursor, rows)

        return self._run(work)

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of a stretch."""
        del poll_ms

        def work(connected: Any) -> SourcePage:
            marked = self._marked(connected, table)
            if marked is None:
                raise AdapterFailed(f"{table} is to be read anew, once its changes are told again")
            return snapshot.read_stretch(
                connected, self._database.dialect, *marked, cursor, ends, rows_max
            )

        return self._run(work)
