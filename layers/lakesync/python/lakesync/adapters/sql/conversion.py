"""Row states to the rows of a table to query, in the types of its columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.database import DeadLetter
from lakesync.adapters.sql.values import Unfit, converter
from lakesync.core.clock import stamp_ms
from lakesync.core.merge import view
from lakesync.core.values import NULL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.sql.definition import Definition
    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.core.merge import RowState

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def deleted_at(state: RowState) -> datetime:
    """Return when a row was deleted, from a state that has only a deletion."""
    return EPOCH + timedelta(milliseconds=stamp_ms(state.deleted))


class Row(NamedTuple):
    """A row in the form of the destination."""

    row_id: str
    deleted_at: datetime | None
    """When it was deleted; None if it exists."""
    values: Sequence[object]


class Converted(NamedTuple):
    """Rows in the types of their columns."""

    rows: Sequence[Row]
    refused: Sequence[DeadLetter]
    """Rows with a value that does not fit its column, each with the reason."""


NO_ROWS: Final = Converted((), ())


class RowConverter:
    """Converts the rows of one table; does not use the connection, so any thread may use it."""

    def __init__(self, dialect: Dialect, definition: Definition) -> None:
        self._table = definition.table
        self._as_read = definition.as_read
        self._driver_value = dialect.value
        columns = definition.stored_columns()
        self._converters = [(name, converter(kind)) for name, kind in columns.items()]

    def converted(self, states: Mapping[str, RowState]) -> Converted:
        """Return rows in the form of the destination."""
        rows: list[Row] = []
        refused: list[DeadLetter] = []
        for row_id, state in states.items():
            try:
                rows.append(self._row(row_id, state))
            except Unfit as exc:
                refused.append(DeadLetter(self._table, row_id, str(exc)))
        return Converted(rows, refused)

    def _row(self, row_id: str, state: RowState) -> Row:
        driver_value = self._driver_value
        driver_value(row_id)
        values = view(self._as_read(state))
        if values is None:
            return Row(row_id, deleted_at(state), [None] * len(self._converters))
        converted: list[object] = []
        for name, convert in self._converters:
            value = values.get(name, NULL)
            if value == NULL:
                converted.append(None)
                continue
            try:
                converted.append(driver_value(convert(value)))
            except Unfit as exc:
                raise Unfit(f"column {name}: {exc}") from exc
        return Row(row_id, None, converted)
