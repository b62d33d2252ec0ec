"""The connector of BigQuery: reads by a column of change times, or by difference."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]  # no stubs

from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.core.column_types import DECIMAL_DIGITS_MAX
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.bigquery import bigquery_queries
from lakesync.systems.bigquery.bigquery_jobs import Jobs, Look
from lakesync.systems.bigquery.bigquery_queries import (
    Polling,
    origin_of,
    rows_with_keys,
    untimed_row,
)
from lakesync.systems.bigquery.bigquery_statements import is_missing_table, is_statement_fault
from lakesync.systems.sql.by_difference import is_same_key
from lakesync.systems.sql.by_time import check_times, untimed
from lakesync.systems.sql.database_values import Bound, PythonValues, bytes_from, exact, same
from lakesync.systems.sql.table_plan import check_names, plan_of, refused_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.connectors.port import SourcePage, Storage
    from lakesync.result import Result
    from lakesync.systems.bigquery.bigquery_jobs import Field, Trial
    from lakesync.systems.bigquery.bigquery_queries import Statement
    from lakesync.systems.bigquery.bigquery_settings import BigQuerySettings, BigQueryTable
    from lakesync.systems.sql.table_plan import Plan

# --- values ---------------------------------------------------------------------------------------


_DIGITS: Final = re.compile(r"(?:BIG)?NUMERIC\((\d+)(?:, (\d+))?\)")
_TYPES: Final = {
    "INT64": "integer", "FLOAT64": "number", "BOOL": "boolean", "TIMESTAMP": "timestamp",
    "DATETIME": "timestamp", "DATE": "date", "BYTES": "bytes", "JSON": "json",
    "NUMERIC": "decimal(38,9)", "RANGE": "json",
}  # fmt: skip
"""Types that are not text; a BIGNUMERIC without digits has more than a column can have."""
_NESTED: Final = ("ARRAY<", "STRUCT<")


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError as exc:
        raise ValueError(f"{text[:60]} is no number") from exc


_KEYS: Final[Mapping[str, Callable[[str], Any]]] = {
    "STRING": same, "INT64": int, "NUMERIC": _number, "BIGNUMERIC": _number,
    "BYTES": bytes_from, "DATE": date.fromisoformat, "TIME": time.fromisoformat,
    "DATETIME": datetime.fromisoformat, "TIMESTAMP": datetime.fromisoformat,
}  # fmt: skip
"""Types that a key may have: how its values are read from a row's id."""


class BigQueryValues(PythonValues):
    """`lakesync.systems.sql.database_values.Values` of BigQuery."""

    def column_type(self, source_type: str) -> str:
        digits = _DIGITS.fullmatch(source_type)
        if digits:
            precision, scale = int(digits[1]), int(digits[2] or 0)
            return f"decimal({precision},{scale})" if precision <= DECIMAL_DIGITS_MAX else "string"
        if source_type.startswith(_NESTED):
            return "json"
        return _TYPES.get(_base(source_type), "string")

    def alters(self, column: SourceColumn) -> str:
        return column.source_type

    def converter(self, column: SourceColumn) -> Callable[[Any], Any]:
        """Return the function to JSON; the library has parsed JSON already."""
        if "INTERVAL" in column.source_type:
            return lambda value: exact(_without_intervals(value))
        return exact if column.type == "json" else super().converter(column)

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return the value itself; None for what is not compared exactly."""
        return super().bound(column) if _base(column.source_type) in _KEYS else None

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        return _KEYS[_base(column.source_type)]


def _base(source_type: str) -> str:
    return source_type.partition("(")[0]


def _without_intervals(value: Any) -> Any:
    """Return a value with durations as BigQuery prints them: ``1-2 3 4:5:6.7``."""
    if isinstance(value, relativedelta):
        return _interval(value)
    if isinstance(value, dict):
        return {name: _without_intervals(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_intervals(part) for part in value]
    return value


def _interval(value: relativedelta) -> str:
    months = value.years * 12 + value.months
    micros = ((value.hours * 60 + value.minutes) * 60 + value.seconds) * 1_000_000
    micros += value.microseconds
    year, month = divmod(abs(months), 12)
    seconds, part = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f".{part:06}".rstrip("0") if part else ""
    return (
        f"{'-' if months < 0 else ''}{year}-{month} {value.days} "
        f"{'-' if micros < 0 else ''}{hour}:{minute}:{second}{fraction}"
    )


T = TypeVar("T")

DISCOVERED_TABLES_MAX: Final = 25
"""Tables of a dataset that are described beside those that are read."""
_VALUES = BigQueryValues()


class BigQueryConnector:
    """`lakesync.connectors.Connector` of BigQuery."""

    def __init__(self, jobs: Jobs, settings: BigQuerySettings, storage: Storage) -> None:
        self._jobs = jobs
        self._settings = settings
        self._storage = storage
        self._tables = {table.name: table for table in settings.tables}
        self._readings: dict[str, bigquery_queries.ByTime | bigquery_queries.ByDifference] = {}
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
        return self._answer(self._as_read)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        def work() -> SourcePage:
            reading = self._reading(table)
            after = cursor
            if isinstance(reading, bigquery_queries.ByDifference) and table not in self._keyed:
                after = after if is_same_key(self._storage, reading.plan) else ""
                self._keyed.add(table)
            return reading.read(after, rows_max, poll_ms)

        return self._answer(work)

    def close(self) -> None:
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

    def _reading(self, name: str) -> bigquery_queries.ByTime | bigquery_queries.ByDifference:
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
    ) -> bigquery_queries.ByTime | bigquery_queries.ByDifference:
        location = self._settings.location or look.location
        polling = Polling(
            self._jobs, self._storage, plan, location, self._settings.maximum_bytes_billed
        )
        if not settings.cursor_column:
            there = self._asking(plan)
            return bigquery_queries.ByDifference(plan, polling, self._storage, there)
        check_times(plan)
        if settings.partition_days and not look.partition:
            raise AdapterRefused(
                f"{settings.name} has no partitions by time: leave partitionDays out"
            )
        kinds = {field.name: field.type for field in look.fields}
        return bigquery_queries.ByTime(
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
        if isinstance(reading, bigquery_queries.ByTime):
            statement = reading.statement(reading.reach("", self._now(), 0))
        else:
            statement = bigquery_queries.statement_of(plan)
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
        if isinstance(reading, bigquery_queries.ByTime) and not reading.partition_days:
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


def made(settings: BigQuerySettings, storage: Storage) -> BigQueryConnector:
    key = settings.credentials
    jobs = Jobs(
        settings.project, settings.dataset, settings.location, endpoint=settings.endpoint,
        credentials=json.loads(key.get_secret_value()) if key else None,
    )  # fmt: skip
    return BigQueryConnector(jobs, settings, storage)
