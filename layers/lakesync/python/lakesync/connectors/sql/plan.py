"""How a table of a SQL database is read: its columns, their types, its key."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakesync.connectors.deltas import identifier
from lakesync.connectors.sql.values import converter_of, json_value, kinds_of
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.port import SourceTable
    from lakesync.connectors.sql.configuration import PolledTable


class Altered(Exception):
    """A table's column types differ from those that the same plan read before."""


@dataclass(frozen=True)
class Plan:
    """How a table is read."""

    settings: PolledTable
    columns: tuple[str, ...]
    types: tuple[str, ...]
    names: tuple[str, ...]
    """The columns' names in the gateway."""
    key: tuple[str, ...]
    _kinds: list[tuple[object, ...]] = field(default_factory=list, repr=False, compare=False)
    """The driver's types of the columns, as in the first rows that were read."""

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
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows

    def place(self, column: str) -> int:
        """Return the position of a column in a row."""
        return self.columns.index(column)

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        """The positions of the key's columns in a row."""
        return tuple(map(self.place, self.key))

    @cached_property
    def _read(self) -> tuple[tuple[str, Callable[[type], Any], Callable[[Any], Any]], ...]:
        """Each column's name in the gateway, and the converters of its values to JSON.

        By the values' types, and for all other types.
        """
        return tuple(
            (name, kinds_of(kind).get, converter_of(kind))
            for name, kind in zip(self.names, self.types, strict=True)
        )

    @cached_property
    def _key(self) -> tuple[tuple[int, str], ...]:
        return tuple((at, self.types[at]) for at in self.key_places)

    def row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row: its key's value, or several as a JSON array."""
        return row_id_of([json_value(row[at], kind) for at, kind in self._key])

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row as JSON values.

        Raises:
            ValueError: JSON cannot represent a value; the message names the column.
        """
        values = {}
        for (name, known, convert), value in zip(self._read, row, strict=True):
            try:
                values[name] = None if value is None else (known(value.__class__) or convert)(value)
            except ValueError as exc:
                raise ValueError(f"the column {name}: {exc}") from exc
        return values

    def some_values(self, columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
        """Return some columns of a row as JSON values; without those that JSON cannot represent."""
        values = {}
        for column, value in zip(columns, row, strict=True):
            at = self.place(column)
            with suppress(ValueError):
                values[self.names[at]] = json_value(value, self.types[at])
        return values

    def key_row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row of which only the key's columns were read."""
        kinds = [self.types[self.place(name)] for name in self.key]
        return row_id_of([json_value(*each) for each in zip(row, kinds, strict=True)])


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


def plan_of(settings: PolledTable, table: SourceTable) -> Plan:
    """Return how a table is read.

    Raises:
        AdapterRefused: it lacks a configured column, or a key.
    """
    types = {column.name: column.type for column in table.columns}
    key = tuple(settings.key or table.key)
    if not key:
        raise AdapterRefused(
            f"{settings.name} has no primary key: name the columns that identify a row in key"
        )
    cursor = (settings.cursor_column,) if settings.cursor_column else ()
    wanted = dict.fromkeys((*(settings.columns or types), *key, *cursor))
    missing = [name for name in wanted if name not in types]
    if missing:
        raise AdapterRefused(f"{settings.name} has no column {', '.join(missing)}")
    names = tuple(map(identifier, wanted))
    if len({name.lower() for name in names}) < len(names):
        raise AdapterRefused(
            f"two columns of {settings.name} would have one name: say which are wanted in columns"
        )
    return Plan(settings, tuple(wanted), tuple(types[name] for name in wanted), names, key)
