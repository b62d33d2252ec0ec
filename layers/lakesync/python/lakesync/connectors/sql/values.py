"""Converts values of a SQL driver to JSON, and SQL types to column types."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.instants import microseconds, utc_text
from lakesync.core.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_EXACT_INT_MAX: Final = (1 << 53) - 1
_NUMERIC: Final = re.compile(r"(?:numeric|decimal)\((\d+),\s*(-?\d+)\)")
_TYPES: Final = (
    (re.compile(r"boolean|bool|tinyint\(1\)"), "boolean"),
    (re.compile(r"(small|big|tiny|medium)?int(eger)?\b.*"), "integer"),
    (re.compile(r"real|double( precision)?|float.*"), "number"),
    (re.compile(r"timestamp.*|datetime.*"), "timestamp"),
    (re.compile(r"date"), "date"),
    (re.compile(r"bytea|.*blob|(var)?binary.*|bit\(\d+\)"), "bytes"),
    (re.compile(r"jsonb?"), "json"),
)


def column_type(sql_type: str) -> str:
    """Return the column type for a SQL type; text if no other fits."""
    if sql_type.endswith("[]"):
        return "json"
    numeric = _NUMERIC.fullmatch(sql_type)
    if numeric:
        precision, scale = int(numeric[1]), int(numeric[2])
        fits = precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
        return f"decimal({precision},{scale})" if fits else "string"
    if sql_type.startswith("bigint") and sql_type.endswith("unsigned"):
        return "string"
    return next((ours for theirs, ours in _TYPES if theirs.fullmatch(sql_type)), "string")


def json_value(value: Any, type_name: str) -> Any:
    """Return a driver's value as JSON, in the form of its column's type.

    Raises:
        ValueError: JSON has no such value.
    """
    return None if value is None else converter_of(type_name)(value)


def converter_of(type_name: str) -> Callable[[Any], Any]:
    """Get the function that converts a column's non-null values to JSON, as `json_value` does."""
    return _CONVERTERS.get(type_name, _exact)


def kinds_of(type_name: str) -> Mapping[type, Callable[[Any], Any]]:
    """Return the converter for a value's type; most types are found directly."""
    return _KINDS.get(type_name, _EXACT)


def instant_us(value: object) -> int | None:
    """Return an instant in microseconds since 1970, in UTC without a zone; None for null.

    Raises:
        ValueError: it is neither.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(f"{str(value)[:60]} is no time")  # noqa: TRY004 - a value of the source
    return microseconds(value)


def _exact(value: Any) -> Any:
    """Return a value in a form that JSON does not round."""
    return _by_kind(_EXACT, value)


def _text(value: Any) -> Any:
    """Return the value of a text column."""
    return value if isinstance(value, str) else _by_kind(_TEXT, value)


def _json(value: Any) -> Any:
    """Return a JSON value; MySQL's driver returns its text."""
    return _exact(json.loads(value) if isinstance(value, str) else value)


def _by_kind(kinds: Mapping[type, Callable[[Any], Any]], value: Any) -> Any:
    convert = kinds.get(type(value))
    if convert is None:  # a driver's subclass, or an unsupported type
        convert = next((kinds[kind] for kind in kinds if isinstance(value, kind)), str)
    return convert(value)


def _same(value: Any) -> Any:
    return value


def _int(value: int) -> int | str:
    return value if abs(value) <= _EXACT_INT_MAX else str(value)


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return value


def _parts(value: Iterable[Any]) -> list[Any]:
    return [_exact(part) for part in value]


def _members(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): _exact(part) for name, part in value.items()}


def _base64(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(bytes(value)).decode()


_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {
    datetime: utc_text,  # before days, its base class
    date: date.isoformat,
    Decimal: "{:f}".format,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
}
"""Converters to text for types whose text is not what Python prints."""
_EXACT: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: _same,
    bool: _same,  # before whole numbers, its base class
    type(None): _same,
    int: _int,
    float: _float,
    dict: _members,
    list: _parts,
    tuple: _parts,
    **_TEXT,
}
_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": bool,
    "string": _text,
    "json": _json,
}
_KINDS: Final[Mapping[str, Mapping[type, Callable[[Any], Any]]]] = {
    "boolean": {bool: _same},
    "string": {str: _same, **_TEXT},
    "json": {},
}
