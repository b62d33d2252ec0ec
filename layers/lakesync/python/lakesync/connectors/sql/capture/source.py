"""The connector of a PostgreSQL database whose changes are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.port import FEED, SourcePage
from lakesync.connectors.sql.capture import snapshot
from lakesync.connectors.sql.capture.feed import Feed
from lakesync.connectors.sql.capture.kept import CAPTURE, kept_in
from lakesync.connectors.sql.capture.slot import Slot, forgotten
from lakesync.connectors.sql.capture.stretches import SnapshotConnector
from lakesync.connectors.sql.capture.tables import Tables
from lakesync.connectors.sql.capture.waiting import wait
from lakesync.connectors.sql.catalogue import PostgresSource
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed

if TYPE_CHECKING:
    from lakesync.connectors.sql.capture.kept import Baseline
    from lakesync.connectors.sql.configuration import PostgresSettings
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage
    from lakesync.result import Result


class CaptureConnector(SnapshotConnector):
    """`lakesync.connectors.Connector` of a PostgreSQL database, by its log of changes."""

    def __init__(
        self, source: PostgresSource, settings: PostgresSettings, storage: Storage
    ) -> None:
        super().__init__(source, settings, storage)
        self._source = source
        self._slot = Slot(source, settings, storage)
        self._feed = Feed(source, self._slot, self._tables, storage)

    def check(self) -> Result[str, LakeSyncError]:
        """Check that changes can be captured; nothing is created."""

        def work(cursor: Any) -> str:
            self._slot.check(cursor)
            tables = Tables(self._source, self._slot, self._tables)
            tables.look(cursor)
            if tables.faults:
                raise AdapterRefused(" ".join(tables.faults.values()))
            for name in self._tables:
                tables.plan(cursor, name)
            tables.check(cursor, is_made=self._slot.look(cursor).is_published)
            return (
                f"PostgreSQL at {self._settings.host} answers, and changes of "
                f"{', '.join(self._tables)} can be captured by the slot {self._slot.name}."
            )

        return self._run(work)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of the feed, or of a table that is read whole."""

        def feed(connected: Any) -> SourcePage:
            return self._feed.page(connected, cursor, rows_max, poll_ms)

        def whole(connected: Any) -> SourcePage:
            return self._whole(connected, table, cursor, rows_max)

        return self._run(feed, keeps=True) if table == FEED else self._run(whole)

    def close(self) -> None:
        """End the connection."""
        self._feed.forget()
        super().close()

    def _whole(self, cursor: Any, name: str, after: str, rows_max: int) -> SourcePage:
        marked = self._marked(cursor, name)
        if marked is None:
            return SourcePage((), after, has_more=False)  # the feed reports the reason
        dialect = self._source.dialect
        return snapshot.read(cursor, dialect, *marked, self._storage, after, rows_max, wait)

    def _marked(self, cursor: Any, name: str) -> tuple[Plan, Baseline] | None:
        if name not in self._tables:
            raise ValidationFailed(f"this connector does not poll {name}", field="table")
        tables = self._feed.captured.tables
        mark = kept_in(self._storage).tables.get(name)
        if mark is None:
            tables.look(cursor)
            if name in tables.faults:
                raise AdapterRefused(tables.faults[name])
            return None
        if name not in tables.looks:
            tables.look(cursor)
        return tables.plan(cursor, name), mark


def forget(
    settings: PostgresSettings,
    storage: Storage,
    following: PostgresSettings | None,
    hosts: tuple[str, ...] = (),
) -> str:
    """Drop what was created at the source, unless new settings use it; returns what remains."""
    kept = kept_in(storage)
    places = ("host", "port", "database", "changes", "slot", "publication")
    if following is not None and all(
        getattr(settings, name) == getattr(following, name) for name in places
    ):
        return ""
    if not kept.slot:
        return ""
    source = PostgresSource(settings, hosts)
    remains = forgotten(source, Slot(source, settings, storage), kept.all)
    if following is not None or not remains:
        storage.remove(CAPTURE)
    return remains
