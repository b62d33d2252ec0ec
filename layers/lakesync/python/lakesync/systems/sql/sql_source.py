"""The connector of a SQL database: reads by a column of change times, or by difference.

A connector that captures changes reads a table whole first, as of its baseline, in key order and
without a lock (`CapturedSource`). First its rows are read; then the rows that the gateway has
from this connector are checked, to detect deletions. Both get the baseline's time: all changes from
the feed since then are later.

Law N13: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.connectors.port import FEED, Change, SourcePage, SourceTable, Stretch, Unreadable
from lakesync.errors import AdapterFailed, AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.sql import by_difference, by_time
from lakesync.systems.sql.by_difference import is_same_key
from lakesync.systems.sql.captured_tables import kept_in
from lakesync.systems.sql.table_plan import (
    Altered,
    Plan,
    asking,
    behind,
    check_reads,
    page_of,
    plan_of,
    rows_gone,
    up_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.adapters.sql.standard import Connection, Dialect
    from lakesync.connectors.port import Storage
    from lakesync.result import Result
    from lakesync.systems.sql.captured_tables import Baseline
    from lakesync.systems.sql.log_changes import LogFeed
    from lakesync.systems.sql.sql_settings import PolledTable, SqlSettings
    from lakesync.systems.sql.table_plan import Database

T = TypeVar("T")


class SqlConnector:
    """`lakesync.connectors.Connector` of PostgreSQL, MySQL and MariaDB, which is its `database`."""

    def __init__(self, database: Database, settings: SqlSettings, storage: Storage) -> None:
        self.database = database
        self._settings = settings
        self._storage = storage
        self._tables = settings.polled()
        self._plans: dict[str, Plan] = {}
        self._keyed: set[str] = set()
        """Tables whose key was compared with that of earlier polls."""
        self._connection: Connection | None = None

    def check(self) -> Result[str, LakeSyncError]:
        def work(cursor: Any) -> str:
            noted = [self._checked(cursor, name) for name in self._tables]
            has = f"has {', '.join(self._tables)}"
            title = self.database.title
            sentence = "; ".join([has, *filter(None, noted)])
            return f"{title} at {self._settings.host} answers, and {sentence}."

        return self._run(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables of the connection's schema; configured ones as they are read."""

        def work(cursor: Any) -> tuple[SourceTable, ...]:
            others = self.database.described(cursor, None)
            return (
                *self._as_read(cursor),
                *(table for table in others if table.name not in self._tables),
            )

        return self._run(work)

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return self._run(self._as_read)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        def work(connected: Any) -> SourcePage:
            plan = self._plan(connected, table)
            is_by_time = bool(plan.settings.cursor_column)
            # A cursor of another way of reading is void: the settings were changed.
            is_ours = by_time.is_cursor if is_by_time else by_difference.is_cursor
            after = cursor if is_ours(cursor) else ""
            if not is_by_time and table not in self._keyed:
                after = after if is_same_key(self._storage, plan) else ""
                self._keyed.add(table)
            if is_by_time:
                return by_time.read(
                    self.database, connected, plan, after, rows_max, self._settings, poll_ms
                )
            return by_difference.read(
                self.database, connected, plan, self._storage, after, rows_max, poll_ms
            )

        return self._planned(work)

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table that is read by change times; others are not divided."""

        def work(connected: Any) -> Stretch:
            plan = self._plan(connected, table)
            if not plan.settings.cursor_column or (cursor and not by_time.is_cursor(cursor)):
                return Stretch(cursor, "")
            return by_time.ahead(
                self.database, connected, plan, cursor, rows, self._settings, poll_ms
            )

        return self._run(work)

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        def work(connected: Any) -> SourcePage:
            plan = self._plan(connected, table)
            return by_time.read(
                self.database, connected, plan, cursor, rows_max, self._settings, poll_ms, ends
            )

        return self._planned(work)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it wrote nothing
                connection.close()

    def _as_read(self, cursor: Any) -> tuple[SourceTable, ...]:
        """Return the configured tables that exist, with the columns that are read."""
        tables = []
        for name, settings in self._tables.items():
            for table in self._described(cursor, settings):
                key = tuple(settings.key or table.key)
                wanted = {*(settings.columns or ()), *key, settings.cursor_column}
                columns = tuple(
                    each for each in table.columns if not settings.columns or each.name in wanted
                )
                tables.append(SourceTable(name, columns, key))
        return tuple(tables)

    def _checked(self, cursor: Any, name: str) -> str:
        """Check that a table can be read; returns a note on it, or empty text."""
        plan = self._plan(cursor, name)
        if plan.settings.query:
            check_reads(cursor, self.database.dialect, name, plan.settings.query)
        return by_time.check(self.database, cursor, plan)

    def _plan(self, cursor: Any, name: str) -> Plan:
        if name not in self._plans:
            if name not in self._tables:
                raise ValidationFailed(f"this connector does not poll {name}", field="table")
            settings = self._tables[name]
            described = self._described(cursor, settings)
            if not described:
                raise AdapterRefused(
                    f"there is no table {name}, or {self._settings.user} may not see it"
                )
            self._plans[name] = plan_of(settings, described[0], self.database.values)
        return self._plans[name]

    def _described(self, cursor: Any, settings: PolledTable) -> Sequence[SourceTable]:
        """Return a table, or what is read in its place; none if there is no such table."""
        if settings.query is None:
            return self.database.described(cursor, settings.name)
        columns = self.database.queried(cursor, settings.name, settings.query)
        return [SourceTable(settings.name, columns, ())]

    def _planned(self, work: Callable[[Any], SourcePage]) -> Result[SourcePage, LakeSyncError]:
        try:
            return self._run(work)
        except Altered:
            return self._run(work)  # with a plan of the current table

    def _run(self, work: Callable[[Any], T], *, keeps: bool = False) -> Result[T, LakeSyncError]:
        """Run work with a cursor; end its transaction, unless the next page continues in it."""
        try:
            with self._translated():
                if self._connection is None:
                    self._connection = self.database.connect()
                with self._connection.cursor() as cursor:
                    done = work(cursor)
                if not keeps:
                    self._connection.rollback()  # the next page sees what was committed since
        except LakeSyncError as error:
            return Err(error)
        return Ok(done)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            self._plans.clear()
            self._keyed.clear()
            self.close()
            error = None if isinstance(exc, LakeSyncError) else self._translate(exc)
            if error is None:
                raise
            raise error from exc

    def _translate(self, error: Exception) -> LakeSyncError | None:
        return self.database.dialect.translate(error)


# --- captured tables, read whole ------------------------------------------------------------------


@dataclass(frozen=True)
class _Snapshot:
    """A captured table, as of its baseline."""

    cursor: Any
    dialect: Dialect
    plan: Plan
    mark: Baseline

    def read(
        self, storage: Storage, after: str, rows_max: int, wait: Callable[[Any, str], None]
    ) -> SourcePage:
        """Return the table's next rows, or the next deletions; nothing once all are read.

        Before the first page, ``wait`` is called with the baseline's ``xid``: it waits until all
        earlier transactions are visible.

        Raises:
            AdapterTimedOut: they are not visible yet.
        """
        at = self._at(after)
        if at is None:
            wait(self.cursor, self.mark.xid)
            at = {}
        if at.get("done"):
            return SourcePage((), after, has_more=False)
        if "gone" in at:
            return self._gone(storage, at["gone"])
        changes, unreadable, last = self._rows(at.get("key"), None, rows_max)
        following = self._cursor({"key": last} if last else {"gone": ""})
        return SourcePage(changes, following, has_more=True, unreadable=unreadable, is_dated=True)

    def ahead(self, after: str, rows: int) -> Stretch:
        """Return a stretch of the next rows behind a cursor; none before the first page is read."""
        at, plan, key = self._at(after), self.plan, self.plan.key
        if at is None or "key" not in at:
            return Stretch(after, "")
        where = [behind(self.dialect, plan.bound(key, at["key"]))]
        origin = plan.origin(self.dialect)
        self.cursor.execute(*page_of(self.dialect, origin, key, key, where, 1, skipped=rows - 1))
        last = plan.source.rows(self.cursor)
        return Stretch(after, self._cursor({"key": plan.ends_at(key, last[0])}) if last else "")

    def stretch(self, after: str, ends: str, rows_max: int) -> SourcePage:
        """Return the next rows up to where a stretch ends.

        Raises:
            AdapterFailed: meanwhile the table is read as of another baseline.
        """
        at = self._at(after)
        if at is None:
            raise AdapterFailed(f"{self.plan.settings.name} is being read anew")
        changes, unreadable, last = self._rows(at["key"], json.loads(ends)["key"], rows_max)
        following = self._cursor({"key": last}) if last else ends
        return SourcePage(changes, following, bool(last), unreadable, is_dated=True)

    def _at(self, after: str) -> dict[str, Any] | None:
        """Return the place of a cursor; None if it is of another baseline, or another reading."""
        at: dict[str, Any] = json.loads(after) if after.startswith('{"us"') else {}
        return at if at.get("us") == self.mark.us else None

    def _cursor(self, place: dict[str, Any]) -> str:
        return json.dumps({"us": self.mark.us} | place)

    def _rows(
        self, key: Sequence[Any] | None, last_key: Sequence[Any] | None, rows_max: int
    ) -> tuple[tuple[Change, ...], tuple[Unreadable, ...], list[Any]]:
        """Return rows between two keys, and the last one's key; no key after the end."""
        plan, dialect = self.plan, self.dialect
        conditions = [] if key is None else [behind(dialect, plan.bound(plan.key, key))]
        if last_key is not None:
            conditions.append(up_to(dialect, plan.bound(plan.key, last_key)))
        self.cursor.execute(
            *page_of(dialect, plan.origin(dialect), plan.columns, plan.key, conditions, rows_max)
        )
        rows = plan.source.rows(self.cursor)
        changes: list[Change] = []
        unreadable: list[Unreadable] = []
        for row in rows:
            row_id = plan.row_id(row)
            try:
                changes.append(Change(row_id, plan.values(row), self.mark.us))
            except ValueError as exc:
                unreadable.append(Unreadable(row_id, str(exc)))
        is_full = len(rows) >= rows_max
        last = plan.ends_at(plan.key, [rows[-1][at] for at in plan.key_places]) if is_full else []
        return tuple(changes), tuple(unreadable), last

    def _gone(self, storage: Storage, place: str) -> SourcePage:
        asks = asking(self.cursor, self.dialect, self.plan)
        row_ids, following = rows_gone(self.plan, storage, place, asks)
        changes = tuple(Change(row_id, None, self.mark.us) for row_id in row_ids)
        after = self._cursor({"gone": following} if following else {"done": True})
        return SourcePage(changes, after, bool(following), is_dated=True)


class CapturedSource(SqlConnector):
    """A connector whose feed is its source's log, and whose tables are first read whole.

    Args:
        wait: waits until all transactions are visible that a baseline's ``xid`` names.
        keeps: whether the feed's next page goes on in the transaction of the page before.
    """

    def __init__(
        self,
        database: Database,
        settings: SqlSettings,
        storage: Storage,
        feed: LogFeed[Any],
        wait: Callable[[Any, str], None],
        *,
        keeps: bool = False,
    ) -> None:
        super().__init__(database, settings, storage)
        self.feed = feed
        self._wait = wait
        self._keeps = keeps

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        def feed(connected: Any) -> SourcePage:
            return self.feed.page(connected, cursor, rows_max, poll_ms)

        def whole(connected: Any) -> SourcePage:
            snapshot = self._snapshot(connected, table)
            if snapshot is None:
                return SourcePage((), cursor, has_more=False)  # the feed reports the reason
            return snapshot.read(self._storage, cursor, rows_max, self._wait)

        return self._run(feed, keeps=self._keeps) if table == FEED else self._run(whole)

    def close(self) -> None:
        self.feed.forget()
        super().close()

    def _check_tables(self, cursor: Any) -> None:
        """Refuse tables that cannot be captured.

        Raises:
            AdapterRefused: what to do.
        """
        tables = self.feed.captured.tables
        tables.look(cursor)
        if tables.faults:
            raise AdapterRefused(" ".join(tables.faults.values()))
        for name in self._tables:
            tables.plan(cursor, name)

    def _snapshot(self, cursor: Any, name: str) -> _Snapshot | None:
        """Return a table that is to be read whole; None if it need not be."""
        if name not in self._tables:
            raise ValidationFailed(f"this connector does not poll {name}", field="table")
        tables = self.feed.captured.tables
        if name not in tables.looks:
            self.feed.look(cursor)
        mark = kept_in(self._storage).tables.get(name)
        if mark is not None:
            return _Snapshot(cursor, self.database.dialect, tables.plan(cursor, name), mark)
        if name in tables.faults:
            raise AdapterRefused(tables.faults[name])
        return None

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table that is being read whole; the feed is not divided."""
        del poll_ms
        if table == FEED:
            return Ok(Stretch(cursor, ""))

        def work(connected: Any) -> Stretch:
            snapshot = self._snapshot(connected, table)
            return Stretch(cursor, "") if snapshot is None else snapshot.ahead(cursor, rows)

        return self._run(work)

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        del poll_ms

        def work(connected: Any) -> SourcePage:
            snapshot = self._snapshot(connected, table)
            if snapshot is None:
                raise AdapterFailed(f"{table} is to be read anew, once its changes are told again")
            return snapshot.stretch(cursor, ends, rows_max)

        return self._run(work)
