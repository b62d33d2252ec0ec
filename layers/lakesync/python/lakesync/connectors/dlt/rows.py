"""dlt's rows as changes: their ids, values and times, and which are deletions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from dlt.common import jsonpath

from lakesync.connectors.deltas import identifier
from lakesync.connectors.dlt.readings import MODIFIED
from lakesync.connectors.instants import microseconds
from lakesync.connectors.port import Change, Unreadable
from lakesync.connectors.sql.plan import row_id_of
from lakesync.connectors.sql.values import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.dlt.readings import Reading

_SECONDS_MAX: Final = 100_000_000_000
"""Numbers below are seconds since 1970, numbers above are milliseconds; up to the year 5138."""
_TYPES: Final = {
    "text": "string", "double": "number", "bool": "boolean", "timestamp": "timestamp",
    "bigint": "integer", "binary": "bytes", "json": "json", "decimal": "string",
    "wei": "string", "date": "date", "time": "string",
}  # fmt: skip
"""Types of columns by dlt's names; of what JSON would round, text."""


class Rows:
    """Makes changes of one resource's rows."""

    def __init__(self, reading: Reading) -> None:
        self._key = reading.key
        self._changed = _reader(reading.changed_at) if reading.changed_at else None
        self._marks = tuple(
            (name, hint.get("data_type"))
            for name, hint in reading.columns.items()
            if hint.get("hard_delete")
        )
        self._names: dict[str, str] = {MODIFIED: ""}
        self.is_dated = self._changed is not None
        self._cursor = _value_at(reading.cursor_path) if reading.cursor_path else None
        self._cursor_path = reading.cursor_path

    def lacks_cursor(self, row: Any) -> bool:
        """Return whether a row has no value by which dlt would tell that it was read."""
        if self._cursor is None:
            return False
        return self._cursor(row if isinstance(row, dict) else vars(row)) is None

    def without_cursor(self, row: Any) -> Unreadable:
        """Return a row that lacks its cursor as one that cannot be read."""
        change = self.change(row)
        reason = (
            f"it has no {self._cursor_path}, by which the table is read, so that it is not read, "
            "nor other rows without: set it, set on_cursor_value_missing to include, or read the "
            "table without incremental"
        )
        return Unreadable(change.row_id, reason)

    def change(self, row: Any) -> Change | Unreadable:
        """Return a row as a change."""
        columns = dict(row if isinstance(row, dict) else vars(row))
        try:
            values = [json_value(columns.get(name), "") for name in self._key]
        except ValueError:
            values = [None]
        if None in values:
            return Unreadable("", f"a row has no {', '.join(self._key)}, by which it is known")
        row_id = row_id_of(values)
        try:
            changed_us = self._changed(columns) if self._changed else None
            if any(_is_marked(columns.get(name), kind) for name, kind in self._marks):
                return Change(row_id, None, changed_us)
            return Change(row_id, self._values(columns), changed_us)
        except ValueError as exc:
            return Unreadable(row_id, str(exc))

    def _values(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for column, value in columns.items():
            name = self._names.get(column)
            if name is None:
                name = self._names[column] = identifier(str(column))
            if not name:
                continue
            if name in values:
                raise ValueError(f"two columns of it would be called {name}")
            try:
                values[name] = json_value(value, "")
            except ValueError as exc:
                raise ValueError(f"the column {name}: {exc}") from exc
        return values


def _is_marked(value: Any, data_type: Any) -> bool:
    """Return whether a column with dlt's hint ``hard_delete`` marks its row as deleted."""
    if data_type == "bool" or isinstance(value, bool):
        return bool(value)
    return value is not None


def _reader(path: str) -> Callable[[dict[str, Any]], int | None]:
    """Return the function that reads a row's change time, in microseconds since 1970, or None."""
    if path == MODIFIED:
        return lambda row: instant_us(row.get(MODIFIED))
    value_at = _value_at(path)
    return lambda row: instant_us(value_at(row))


def _value_at(path: str) -> Callable[[dict[str, Any]], Any]:
    """Return the function that reads a row's value at a JSON path, or None."""
    compiled = jsonpath.compile_path(path)
    simple = jsonpath.extract_simple_field_name(compiled)
    if simple is not None:
        return lambda row: row.get(simple)
    return lambda row: next(iter(jsonpath.find_values(compiled, row)), None)


def instant_us(value: object) -> int | None:
    """Return an instant in microseconds since 1970; None if the value is not an instant.

    Days are not instants: a row may change twice on one.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if len(value) > len("2026-01-01") else None
        except ValueError:
            return None
    if isinstance(value, datetime):
        return microseconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value if abs(value) < _SECONDS_MAX else value / 1000
        return round(seconds * 1_000_000)
    return None


def column_type(hint: Mapping[str, Any], value: object) -> str:
    """Return the type of a column by its hint, or else by one of its values."""
    if hint.get("data_type"):
        return _TYPES.get(str(hint["data_type"]), "string")
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case datetime():
            return "timestamp"
        case dict() | list():
            return "json"
        case _:
            return "string"
