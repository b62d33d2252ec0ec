"""How a table of a SQL database is read: its columns, their types, its key."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakesync.connectors.deltas import identifier
from lakesync.connectors.sql.names import derived_table, quoted_table
from lakesync.connectors.sql.query import Bound
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.port import SourceColumn, SourceTable
    from lakesync.connectors.sql import values as source_values
    from lakesync.connectors.sql.configuration import PolledTable


class Altered(Exception):
    """A table's column types differ from those that the same plan read before."""


@dataclass(frozen=True)
class Plan:
    """How a table is read."""

    settings: PolledTable
    described: tuple[SourceColumn, ...]
    """The columns that are read, in their order."""
    names: tuple[str, ...]
    """The columns' names in the gateway."""
    key: tuple[str, ...]
    source: source_values.Values
    """How the source's values are read."""
    _kinds: list[tuple[object, ...]] = field(default_factory=list, repr=False, compare=False)
    """The driver's types of the columns, as in the first rows that were read."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns' names at the source."""
        return tuple(column.name for column in self.described)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The columns' types."""
        return tuple(column.type for column in self.described)

    @cached_property
    def altered_by(self) -> dict[str, str]:
        """What of each column changes if the table must be read again."""
        return {column.name: self.source.alters(column) for column in self.described}

    def origin(self, dialect: Dialect) -> str:
        """Return the table, or the query in its place, as part of a statement with parameters."""
        if self.settings.query:
            return derived_table(self.settings.query)
        return quoted_table(dialect, self.settings.name)

    @cached_property
    def nullable_key(self) -> tuple[str, ...]:
        """The columns of the key that may be NULL: such rows are never read, but reported."""
        return tuple(
            self.described[at].name for at in self.key_places if self.described[at].nullable
        )

    def rows(self, cursor: Any, statement: tuple[str, Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement that reads these columns.

        Raises:
            Altered: the table was altered meanwhile; nothing was read.
        """
        cursor.execute(*statement)
        kinds = tuple(column[1] for column in cursor.description)
        if not self._kinds:
            self._kinds.append(kinds)
        if self._kinds[0] != kinds:
            raise Altered
        return self.source.rows(cursor)

    def place(self, column: str) -> int:
        """Return the position of a column in a row."""
        return self.columns.index(column)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """The positions of the key's columns in a row."""
        return tuple(map(self.place, self.key))

    @cached_property
    def converts(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions from the columns' values, without NULL, to JSON."""
        return tuple(map(self.source.converter, self.described))

    @cached_property
    def _read(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        return tuple(zip(self.names, self.converts, strict=True))

    @cached_property
    def _bounds(self) -> dict[str, source_values.Bound]:
        bounds = {}
        for column in self.described:
            bound = self.source.bound(column)
            if bound is not None:
                bounds[column.name] = bound
        return bounds

    def row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row: its key's value, or several as a JSON array."""
        return self.key_row_id([row[at] for at in self.key_places])

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row as JSON values.

        Raises:
            ValueError: JSON cannot represent a value; the message names the column.
        """
        values = {}
        for (name, convert), value in zip(self._read, row, strict=True):
            try:
                values[name] = None if value is None else convert(value)
            except ValueError as exc:
                raise ValueError(f"the column {name}: {exc}") from exc
        return values

    def some_values(self, columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        """Return some columns of a row as JSON values; without those that JSON cannot represent."""
        values = {}
        for column, value in zip(columns, row, strict=True):
            at = self.place(column)
            with suppress(ValueError):
                values[self.names[at]] = None if value is None else self.converts[at](value)
        return values

    def key_row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row of which only the key's columns were read."""
        pairs = zip(row, self.key_places, strict=True)
        return row_id_of(
            [None if value is None else self.converts[at](value) for value, at in pairs]
        )

    def ends_at(self, columns: Sequence[str], row: Sequence[Any]) -> list[Any]:
        """Return some columns' values of a row as JSON, as `behind` takes them.

        Args:
            columns: of the order in which rows are read.
            row: these columns' values.
        """
        pairs = zip(columns, row, strict=True)
        return [self._bounds[name].to_json(value) for name, value in pairs]

    def bound(self, columns: Sequence[str], values: Sequence[Any]) -> Bound:
        """Return the bound of `ends_at` as the database compares it."""
        pairs = zip(columns, values, strict=True)
        return Bound(columns, [self._bounds[name].to_parameter(value) for name, value in pairs])

    def key_parameters(self, row_id: str) -> list[Any]:
        """Return the values of the key of a row's id, as the database compares them.

        Raises:
            ValueError: it is not the id of a row with such a key.
        """
        pairs = zip(self.key_places, key_of(row_id, self.key), strict=True)
        return [self.source.key_parameter(self.described[at])(value) for at, value in pairs]

    def instant(self, value: Any) -> datetime | None:
        """Return an instant that was read.

        Raises:
            ValueError: Python does not have it.
        """
        return self.source.instant(value)


def row_id_of(values: Sequence[Any]) -> str:
    """Return a row's id from its key's values: a single one as its text, several as an array."""
    alone = values[0] if len(values) == 1 else None
    if isinstance(alone, str):
        return alone
    if alone.__class__ is int:
        return str(alone)
    return json.dumps(alone if alone is not None else values)


def key_of(row_id: str, key: Sequence[str]) -> Sequence[Any]:
    """Return a key's values from a row's id, as the database reads them.

    Raises:
        ValueError: it is not the id of a row with such a key.
    """
    if len(key) == 1:
        return [row_id]
    values = json.loads(row_id)
    if not isinstance(values, list) or len(values) != len(key):
        raise ValueError(f"{row_id[:60]} is no key of {len(key)} columns")
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def plan_of(settings: PolledTable, table: SourceTable, source: source_values.Values) -> Plan:
    """Return how a table is read.

    Raises:
        AdapterRefused: it lacks a configured column, or a key by which rows can be read.
    """
    columns = {column.name: column for column in table.columns}
    key = tuple(settings.key or table.key)
    if not key:
        raise AdapterRefused(
            f"{settings.name} has no primary key: name the columns that identify a row in key"
        )
    cursor = (settings.cursor_column,) if settings.cursor_column else ()
    wanted = dict.fromkeys((*(settings.columns or columns), *key, *cursor))
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise AdapterRefused(f"{settings.name} has no column {', '.join(missing)}")
    names = tuple(map(identifier, wanted))
    if len({name.lower() for name in names}) < len(names):
        raise AdapterRefused(
            f"two columns of {settings.name} would have one name: say which are wanted in columns"
        )
    for name in key:
        if source.bound(columns[name]) is None:
            raise AdapterRefused(
                f"rows of {settings.name} cannot be read in the order of {name}, which is "
                f"{columns[name].source_type}: name another key"
            )
    return Plan(settings, tuple(columns[name] for name in wanted), names, key, source)
