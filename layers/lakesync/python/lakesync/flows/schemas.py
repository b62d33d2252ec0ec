"""The schemas of a flow's tables at a database: the source's, extended as that changes.

A new column at the source is added; a dropped one stays. If a column's new type is not a widening
of its old one, the old type stays: rows that do not fit become dead letters, and the others are
delivered. Law Y3: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_types import widens
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.names import folded, is_identifier
from lakesync.core.schema import Column, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.connectors.port import Connector, SourceColumn
    from lakesync.connectors.storage import Storage
    from lakesync.core.destinations import Destination
    from lakesync.ports import WallClock

_FOLDER: Final = "schemas"


class FlowSchemas:
    """The schemas of one flow's tables; one for each poll.

    Args:
        connector: the source.
        tables: the source's tables, each with its name here.
        to: the destination, and the mapping.
        storage: keeps the former schema of a table.
        wall_clock: the time, for growing versions.
    """

    def __init__(
        self,
        connector: Connector,
        tables: Mapping[str, str],
        to: Destination,
        storage: Storage,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._connector = connector
        self._tables = tables
        self._to = to
        self._storage = storage
        self._wall_clock = wall_clock
        self._columns: dict[str, tuple[SourceColumn, ...]] | None = None
        self._schemas: dict[str, TableSchema | None] = {}
        """The schemas by table: a poll asks the source and the storage once for each."""

    def of(self, table: str) -> TableSchema | None:
        """Return the schema that a table has at the destination; None without known columns.

        Raises:
            LakeSyncError: the source's tables cannot be listed.
        """
        if table not in self._schemas:
            self._schemas[table] = self._read(table)
        return self._schemas[table]

    def _read(self, table: str) -> TableSchema | None:
        if self._columns is None:
            discovered = self._connector.discover().unwrap()
            self._columns = {
                self._tables[one.name]: one.columns
                for one in discovered
                if one.name in self._tables
            }
        columns = self._columns.get(table, ())
        before = self._storage.read(_FOLDER, table) or {"version": 0, "columns": []}
        grown = _grown(before["columns"], columns)
        if not grown:
            return None
        if grown != before["columns"]:
            version = max(before["version"] + 1, self._wall_clock() // 1_000)
            before = {"version": version, "columns": grown}
            self._storage.write(before, _FOLDER, table)
        schema = TableSchema(
            table, tuple(Column(name, kind) for name, kind in grown), before["version"]
        )
        return self._to.schema_of(table, schema)


def _grown(before: Iterable[Any], columns: Iterable[SourceColumn]) -> list[list[str]]:
    """Return the former columns and the new ones, with their types."""
    grown: dict[str, str] = dict(before)
    spelled = {folded(name) for name in grown}
    for column in columns:
        kind = grown.get(column.name)
        if kind is not None:
            grown[column.name] = column.type if widens(kind, column.type) else kind
        elif is_identifier(column.name) and folded(column.name) not in spelled:
            grown[column.name] = column.type
            spelled.add(folded(column.name))
    return [[name, kind] for name, kind in list(grown.items())[:COLUMNS_MAX]]
