"""BigQuery's values as JSON, from what its library returns."""

from __future__ import annotations

import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]  # no stubs

from lakesync.connectors.sql.values import Bound, PythonValues, bytes_from, exact, same
from lakesync.core.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import SourceColumn

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
    """`lakesync.connectors.sql.values.Values` of BigQuery."""

    def column_type(self, source_type: str) -> str:
        """Return the column type for a type as SQL spells it."""
        digits = _DIGITS.fullmatch(source_type)
        if digits:
            precision, scale = int(digits[1]), int(digits[2] or 0)
            return f"decimal({precision},{scale})" if precision <= DECIMAL_DIGITS_MAX else "string"
        if source_type.startswith(_NESTED):
            return "json"
        return _TYPES.get(_base(source_type), "string")

    def alters(self, column: SourceColumn) -> str:
        """Return the source's type."""
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
        """Return the function to a value of the column's type."""
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
