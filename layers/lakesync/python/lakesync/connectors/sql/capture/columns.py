"""Converts the columns of a captured table to JSON values: the same as reading the table gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.connectors.sql.capture.pgoutput import UNCHANGED
from lakesync.connectors.sql.plan import Plan, plan_of, row_id_of
from lakesync.connectors.sql.postgres_values import PostgresValues, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.sql.capture.pgoutput import Relation
    from lakesync.connectors.sql.configuration import PolledTable

_TYPES_OF: Final = f"""
    SELECT coalesce({resolved("u.type_id", "u.modifier")}, 'text')
    FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY u(type_id, modifier, place)
    ORDER BY u.place"""  # noqa: S608 - our own SQL
"""Of types that were dropped since, the printed form is all that is known."""


class CapturedTable(NamedTuple):
    """How the logged rows of one table are decoded, since it was last altered."""

    plan: Plan
    places: tuple[int, ...]
    """The position of each of the plan's columns in a row of the source."""
    converts: tuple[Callable[[Any], Any], ...]
    key_places: tuple[int, ...]
    """The positions of the key's columns among the plan's."""

    @property
    def name(self) -> str:
        """The source's name for the table."""
        return self.plan.settings.name

    @property
    def types(self) -> dict[str, str]:
        """What of each column changes if the table must be read again."""
        return self.plan.altered_by

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row's values by column, without those missing in the log.

        Raises:
            ValueError: JSON has no such value; the message names the column.
        """
        values: dict[str, Any] = {}
        for name, place, convert in zip(self.plan.names, self.places, self.converts, strict=True):
            value = row[place]
            if value is None:
                values[name] = None
            elif value is not UNCHANGED:
                try:
                    values[name] = convert(value)
                except ValueError as exc:
                    raise ValueError(f"the column {name}: {exc}") from exc
        return values

    def row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row.

        Raises:
            ValueError: JSON has no such value, or the key is missing in the log.
        """
        key = []
        for at in self.key_places:
            value = row[self.places[at]]
            if value is None or value is UNCHANGED:
                raise ValueError(f"the key's column {self.plan.names[at]} is not in the log")
            key.append(self.converts[at](value))
        return row_id_of(key)

    def omitted(self, row: Sequence[Any]) -> tuple[str, ...]:
        """Return the columns whose values are missing in the log, by the source's names."""
        return tuple(
            name
            for name, place in zip(self.plan.columns, self.places, strict=True)
            if row[place] is UNCHANGED
        )


def captured_table(
    cursor: Any, relation: Relation, settings: PolledTable, key: Sequence[str]
) -> CapturedTable:
    """Return how a table's logged rows are decoded.

    Args:
        cursor: the connection that reads the log: the printed form of values depends on it.
        relation: the table as the log describes it.
        settings: which of its columns are wanted.
        key: the current primary key's columns.

    Raises:
        AdapterRefused: a configured column is missing.
    """
    type_ids = [column.type_id for column in relation.columns]
    modifiers = [column.modifier for column in relation.columns]
    cursor.execute(_TYPES_OF, (type_ids, modifiers))
    source = PostgresValues()
    columns = tuple(
        SourceColumn(column.name, source.column_type(name), source_type=name)
        for column, (name,) in zip(relation.columns, cursor.fetchall(), strict=True)
    )
    table = SourceTable(settings.name, columns, _key(relation, key))
    plan = plan_of(settings, table, source)
    place_of = {column.name: place for place, column in enumerate(columns)}
    places = tuple(place_of[name] for name in plan.columns)
    return CapturedTable(plan, places, plan.converts, plan.key_places)


def _key(relation: Relation, key: Sequence[str]) -> tuple[str, ...]:
    """Return the primary key by the column names at the time when the rows were written."""
    identity = [column.name for column in relation.columns if column.in_identity]
    if relation.identity == "d" and set(identity) != set(key):
        return tuple(identity)
    return tuple(key)
