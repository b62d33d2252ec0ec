"""The connector of BigQuery: reads by a column of change times, or by difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.adapters.bigquery.faults import is_missing_table, is_statement_fault
from lakesync.adapters.bigquery.looks import Look
from lakesync.connectors.bigquery import by_difference, by_time
from lakesync.connectors.bigquery.polling import Polling
from lakesync.connectors.bigquery.statements import origin_of, rows_with_keys, untimed_row
from lakesync.connectors.bigquery.values import BigQueryValues
from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.connectors.sql.by_time import check_times, untimed
from lakesync.connectors.sql.plan import plan_of
from lakesync.connectors.sql.queried import check_names, refused_query
from lakesync.connectors.sql.rekeying import is_same_key
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from lakesync.adapters.bigquery import Jobs
    from lakesync.adapters.bigquery.looks import Field, Trial
    from lakesync.connectors.bigquery.configuration import BigQuerySettings, BigQueryTable
    from lakesync.connectors.bigquery.statements import Statement
    from lakesync.connectors.port import SourcePage
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage
    from lakesync.result import Result

T = TypeVar("T")

DISCOVERED_TABLES_MAX: Final = 25
"""Tables of a dataset that are described beside those that are read."""
_VALUES = BigQueryValues()


class BigQueryConnector:
    """`lakesync.connectors.Connector` of BigQuery.

    Args:
        jobs: the dataset.
        settings: the connector's.
        storage: the connector's.
    """

    def __init__(self, jobs: Jobs, settings: BigQuerySettings, storage: Storage) -> None:
        self._jobs = jobs
        self._settings = settings
        self._storage = storage
        self._tables = {table.name: table for table in settings.tables}
        self._readings: dict[str, by_time.ByTime | by_difference.ByDifference] = {}
        self._keyed: set[str] = set()

    def check(self) -> Result[str, LakeSyncError]:
        """Check that every table can be read, by what BigQuery says of each poll's statement."""

        def work() -> str:
            read = {name: self._checked(name) for name in self._tables}
            each = ", ".join(f"{name} (about {size:,} bytes a poll)" for name, size in read.items())
            place = f"{self._settings.project}.{self._settings.dataset}"
            return f"BigQuery answers, and {place} has {each}."

        return self._answer(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the configured tables as they are read, and some others of the dataset."""

        def work() -> tuple[SourceTable, ...]:
            names = self._jobs.tables(DISCOVERED_TABLES_MAX + len(self._tables))
            others = [name for name in names if name not in self._tables]
            described = [
                _table(name, self._jobs.look(name)) for name in others[:DISCOVERED_TABLES_MAX]
            ]
            return (*self._as_read(), *described)

        return self._answer(work)

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the configured tables as they are read."""
        return self._answer(self._as_read)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page."""

        def work() -> SourcePage:
            reading = self._reading(table)
            after = cursor
            if isinstance(reading, by_difference.ByDifference) and table not in self._keyed:
                after = after if is_same_key(self._storage, reading.plan) else ""
                self._keyed.add(table)
            return reading.read(after, rows_max, poll_ms)

        return self._answer(work)

    def close(self) -> None:
        """Close the connections."""
        self._readings.clear()
        self._keyed.clear()
        self._jobs.close()

    # --- tables -----------------------------------------------------------------------------------

    def _as_read(self) -> tuple[SourceTable, ...]:
        tables = []
        for name in self._tables:
            look = self._look(self._tables[name])
            if look is not None:
                plan = self._plan(name, look)
                tables.append(SourceTable(name, plan.described, plan.key))
        return tuple(tables)

    def _look(self, settings: BigQueryTable) -> Look | None:
        """Return what a table is, or the query in its place; None if there is no such table."""
        if settings.query is not None:
            trial = self._trial_of_query(settings.name, settings.query)
            check_names(settings.name, [field.name for field in trial.fields])
            return Look(trial.fields, (), "", trial.location)
        try:
            return self._jobs.look(settings.name)
        except LakeSyncError as error:
            if is_missing_table(error):
                return None
            raise

    def _trial_of_query(self, name: str, query: str) -> Trial:
        """Ask what a query is by itself: one statement, and one that reads."""
        try:
            trial = self._jobs.trial(query)
        except LakeSyncError as error:
            if is_statement_fault(error):
                raise refused_query(name, error.message) from error
            raise
        if trial.kind != "SELECT":
            raise refused_query(name, f"BigQuery says that it is a {trial.kind or 'script'}")
        return trial

    def _plan(self, name: str, look: Look) -> Plan:
        settings = self._tables[name]
        return plan_of(settings, _table(name, look), _VALUES)

    def _reading(self, name: str) -> by_time.ByTime | by_difference.ByDifference:
        if name not in self._readings:
            if name not in self._tables:
                raise ValidationFailed(f"this connector does not poll {name}", field="table")
            settings = self._tables[name]
            look = self._look(settings)
            if look is None:
                raise AdapterRefused(f"there is no table {name}, or its user may not see it")
            self._readings[name] = self._made(settings, self._plan(name, look), look)
        return self._readings[name]

    def _made(
        self, settings: BigQueryTable, plan: Plan, look: Look
    ) -> by_time.ByTime | by_difference.ByDifference:
        location = self._settings.location or look.location
        polling = Polling(
            self._jobs, self._storage, plan, location, self._settings.maximum_bytes_billed
        )
        if not settings.cursor_column:
            there = self._asking(plan)
            return by_difference.ByDifference(plan, polling, self._storage, there)
        check_times(plan)
        if settings.partition_days and not look.partition:
            raise AdapterRefused(
                f"{settings.name} has no partitions by time: leave partitionDays out"
            )
        kinds = {field.name: field.type for field in look.fields}
        return by_time.ByTime(
            plan, self._settings, look.partition, kinds.get(look.partition, "TIMESTAMP"),
            settings.partition_days or 0, polling, self._now,
        )  # fmt: skip

    def _now(self) -> datetime:
        now: datetime = self._jobs.query("SELECT CURRENT_TIMESTAMP()")[0][0]
        return now

    def _asking(self, plan: Plan) -> Callable[[Sequence[str]], set[str]]:
        """Return the function that asks which of the given rows a table has."""

        def rows_there(row_ids: Sequence[str]) -> set[str]:
            keys = list(_keys(plan, row_ids))
            origin = origin_of(plan.settings.name, plan.settings.query)
            if not keys:
                return set()
            rows = self._rows(rows_with_keys(origin, plan.key, keys))
            return {plan.key_row_id(row) for row in rows}

        return rows_there

    def _rows(self, statement: Statement) -> list[Any]:
        named = {f"p{place}": value for place, value in enumerate(statement.parameters)}
        return self._jobs.query(statement.text, **named)

    def _checked(self, name: str) -> int:
        """Check that a table can be read; returns how many bytes a poll would read.

        Raises:
            AdapterRefused: it cannot be read, or costs more than is allowed.
        """
        reading = self._reading(name)
        plan = reading.plan
        if isinstance(reading, by_time.ByTime):
            statement = reading.statement(reading.reach("", self._now(), 0))
        else:
            statement = by_difference.statement_of(plan)
        try:
            trial = self._jobs.trial(*statement)
        except AdapterRefused as error:
            raise AdapterRefused(
                f"{name} cannot be read: {error.message}: if its partitions must be named, set "
                "partitionDays, or name a query with a filter"
            ) from error
        allowed = self._settings.maximum_bytes_billed
        if trial.bytes > allowed:
            raise AdapterRefused(
                f"a poll of {name} would read {trial.bytes:,} bytes, and maximumBytesBilled is "
                f"{allowed:,}: raise it, or read less, by columns, partitionDays or a query"
            )
        if isinstance(reading, by_time.ByTime) and not reading.partition_days:
            self._check_times_there(plan)
        return trial.bytes

    def _check_times_there(self, plan: Plan) -> None:
        settings = plan.settings
        origin = origin_of(settings.name, settings.query)
        statement = untimed_row(origin, plan.key, settings.cursor_column or "")
        for row in self._rows(statement):
            raise untimed(plan, plan.key_row_id(row))

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            self._readings.clear()  # a table may have been altered
            self._keyed.clear()
            return Err(error)


def _table(name: str, look: Look) -> SourceTable:
    return SourceTable(name, tuple(map(_column, look.fields)), look.key)


def _column(field: Field) -> SourceColumn:
    kind = _VALUES.column_type(field.type)
    return SourceColumn(field.name, kind, not field.is_required, field.type)


def _keys(plan: Plan, row_ids: Iterable[str]) -> Iterable[list[Any]]:
    """Return the keys of row ids; an id that is not of the table's key is no row of it."""
    for row_id in row_ids:
        try:
            yield plan.key_parameters(row_id)
        except ValueError:
            continue
