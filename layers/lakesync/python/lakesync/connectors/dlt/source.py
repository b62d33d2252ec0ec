"""The connector of a source of dlt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.connectors.deltas import identifier
from lakesync.connectors.dlt.extraction import Extraction
from lakesync.connectors.dlt.made import Source
from lakesync.connectors.dlt.readings import MODIFIED, pages_of, reading_of
from lakesync.connectors.dlt.rows import Rows, column_type
from lakesync.connectors.dlt.translation import translated
from lakesync.connectors.port import SourceColumn, SourceTable, Unreadable
from lakesync.errors import AdapterFailed, AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.dlt.configuration import DltSettings, DltTable
    from lakesync.connectors.dlt.readings import Reading
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import SourcePage
    from lakesync.connectors.storage import Storage
    from lakesync.result import Result

T = TypeVar("T")

_CHECK_S_MAX: Final = 8.0
"""After how long `DltConnector.check` asks no other table."""
_SAMPLE_ROWS: Final = 100
"""Rows from which column types are inferred if the source does not declare them."""


class DltConnector:
    """`lakesync.connectors.Connector` of dlt's sources."""

    def __init__(self, settings: DltSettings, storage: Storage, outside: Outside) -> None:
        self._tables = settings.read()
        self._storage = storage
        self._source = Source(settings, outside)

    def check(self) -> Result[str, LakeSyncError]:
        """Say that every table can be read."""

        def work() -> str:
            ends = time.monotonic() + _CHECK_S_MAX
            for table in self._tables.values():
                reading = self._reading(table)
                if time.monotonic() < ends:
                    self._verified(reading, table)
            return f"{self._source.title} answers, and has {', '.join(self._tables)}."

        return self._run(work)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables that are read; undeclared types are inferred from the first rows."""
        return self._run(lambda: tuple(map(self._described, self._tables.values())))

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - what has no time has the poll's, by its page
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a part of what dlt extracts."""

        def work() -> SourcePage:
            if table not in self._tables:
                raise ValidationFailed(f"this connector does not poll {table}", field="table")
            reading = self._reading(self._tables[table])
            extraction = Extraction(reading, Rows(reading), self._storage, table)
            return extraction.page(cursor, rows_max)

        return self._run(work)

    def close(self) -> None:
        """Close all connections."""
        self._source.close()

    def _reading(self, table: DltTable) -> Reading:
        return reading_of(self._source.resource(table), table)

    def _sample(self, reading: Reading) -> list[Any]:
        """Return the first rows of a resource that has any."""
        pages = pages_of(reading.resource, {})
        try:
            return next((rows[:_SAMPLE_ROWS] for rows in pages if rows), [])
        finally:
            pages.close()

    def _verified(self, reading: Reading, table: DltTable) -> None:
        sample = self._sample(reading)
        change = Rows(reading).change(sample[0]) if sample else None
        if isinstance(change, Unreadable):
            raise AdapterRefused(f"{table.name}: {change.reason}")

    def _described(self, table: DltTable) -> SourceTable:
        reading = self._reading(table)
        values: dict[str, object] = {}
        for row in self._sample(reading):
            for name, value in (row if isinstance(row, dict) else vars(row)).items():
                if values.get(name) is None:
                    values[name] = value
        values.pop(MODIFIED, None)
        columns = tuple(
            SourceColumn(
                identifier(name),
                column_type(reading.columns.get(name, {}), values.get(name)),
                nullable=name not in reading.key,
            )
            for name in dict.fromkeys((*reading.key, *reading.columns, *values))
        )
        return SourceTable(table.name, columns, tuple(map(identifier, reading.key)))

    def _run(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        try:
            return Ok(work())
        except LakeSyncError as error:
            return Err(error)
        except Exception as exc:
            ours = translated(exc, self._source.translate)
            if ours is None and type(exc).__module__.startswith(("dlt.", "sqlalchemy.")):
                # Its text may contain rows.
                ours = AdapterFailed(f"the source failed: {type(exc).__name__}")
            if ours is None:
                raise
            return Err(ours)
