"""The connector of a SQL database: reads by a column of change times, or by difference."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.connectors.port import SourceTable, Stretch
from lakesync.connectors.sql import by_difference, by_time
from lakesync.connectors.sql.by_difference import is_same_key
from lakesync.connectors.sql.source_catalogue import check_reads
from lakesync.connectors.sql.table_plan import Altered, Plan, plan_of
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.adapters.sql.dialect import Connection
    from lakesync.connectors.port import SourcePage, Storage
    from lakesync.connectors.sql.source_catalogue import Database
    from lakesync.connectors.sql.sql_settings import PolledTable, SqlSettings
    from lakesync.result import Result

T = TypeVar("T")


class SqlConnector:
    """`lakesync.connectors.Connector` of PostgreSQL, MySQL and MariaDB."""

    def __init__(self, database: Database, settings: SqlSettings, storage: Storage) -> None:
        self._database = database
        self._settings = settings
        self._storage = storage
        self._tables = {table.name: table for table in settings.tables}
        self._plans: dict[str, Plan] = {}
        self._keyed: set[str] = set()
        """Tables whose key was compared with that of earlier polls."""
        self._connection: Connection | None = None

    def check(self) -> Result[str, LakeSyncError]:
        """Check that every table can be read."""

        def work(cursor: Any) -> str:
            noted = [self._checked(cursor, name) for name in self._tables]
            has = f"has {', '.join(self._tables)}"
            title = self._database.title
            sentence = "; ".join([has, *filter(None, noted)])
            return f"{title} at {self._settings.host} answers, and {sentence}."

        return self._run(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables of the connection's schema; configured ones as they are read."""

        def work(cursor: Any) -> tuple[SourceTable, ...]:
            others = self._database.described(cursor, None)
            return (
                *self._as_read(cursor),
                *(table for table in others if table.name not in self._tables),
            )

        return self._run(work)

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the configured tables as they are read."""
        return self._run(self._as_read)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page."""

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
                    self._database, connected, plan, after, rows_max, self._settings, poll_ms
                )
            return by_difference.read(
                self._database, connected, plan, self._storage, after, rows_max, poll_ms
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
                self._database, connected, plan, cursor, rows, self._settings, poll_ms
            )

        return self._run(work)

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of a stretch."""

        def work(connected: Any) -> SourcePage:
            plan = self._plan(connected, table)
            return by_time.read(
                self._database, connected, plan, cursor, rows_max, self._settings, poll_ms, ends
            )

        return self._planned(work)

    def close(self) -> None:
        """End the connection."""
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
            check_reads(cursor, self._database.dialect, name, plan.settings.query)
        return by_time.check(self._database, cursor, plan)

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
            self._plans[name] = plan_of(settings, described[0], self._database.values)
        return self._plans[name]

    def _described(self, cursor: Any, settings: PolledTable) -> Sequence[SourceTable]:
        """Return a table, or what is read in its place; none if there is no such table."""
        if settings.query is None:
            return self._database.described(cursor, settings.name)
        columns = self._database.queried(cursor, settings.name, settings.query)
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
                    self._connection = self._database.connect()
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
        return self._database.dialect.translate(error)
