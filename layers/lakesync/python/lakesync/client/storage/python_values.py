"""Values of declared columns as Python has them: dates, decimals, bytes, booleans, large integers.

JSON has no form for most of them, so they travel as text (``docs/spec/schema.md``, S1). A declared
column accepts and returns Python's types. A value of another type in a declared column, written by
another client, is returned as it was written.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_types import bytes_of, date_of, decimal_of, fits, timestamp_of
from lakesync.core.values import NULL, canonical, parse
from lakesync.errors import SchemaMismatch, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lakesync.core.values import CanonicalJson

_EXACT_INTS: Final = range(-(1 << 53) + 1, 1 << 53)
_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN_EXPONENT_MAX: Final = 100
"""Decimals further from 1 than this power of ten are no declared decimals, however printed."""
BINARY: Final = (bytes, bytearray, memoryview)
"""What stands for bytes, in an edit and as a parameter."""
_DECLARED_AS: Final[tuple[tuple[type[Any], str], ...]] = (
    (datetime, "timestamp"),
    (date, "date"),
    (Decimal, "decimal(p,s)"),
    *((binary, "bytes") for binary in BINARY),
)
"""Types that only a declared column takes."""
_WANTED: Final = {
    "string": "text",
    "number": "a float or an int",
    "boolean": "True or False",
    "null": "None",
    "integer": "an int of 64 bits",
    "decimal": "a Decimal with no more digits",
    "timestamp": "a datetime, or text such as 2026-05-17T08:00:00Z",
    "date": "a date, or text such as 2026-05-17",
    "bytes": "bytes, or base64 with its padding",
}


def kind_of(type_name: str) -> str:
    """Return a type without its digits: ``decimal`` for ``decimal(9,2)``."""
    return type_name.partition("(")[0]


def encoder(table: str, column: str, type_name: str) -> Callable[[object], CanonicalJson]:
    """Return a function from values of a declared column to canonical bytes; it checks as S2 does.

    It raises `SchemaMismatch` for a value of another type. Any column may be null.
    """
    kind = kind_of(type_name)
    as_json = _AS_JSON.get(kind)
    always_fit = plain_classes(type_name)

    def encode(value: object) -> CanonicalJson:
        if value.__class__ in always_fit:
            return canonical(value)
        if value is None:
            return NULL
        given = value if as_json is None else as_json(value)
        if not isinstance(given, _PYTHON_ONLY):
            raw = canonical(given)
            if fits(type_name, raw):
                return raw
        raise SchemaMismatch(
            f"{table}.{column} is declared {type_name}, which this {type(value).__name__} is not: "
            f"give it {_WANTED[kind]}, or declare it otherwise"
        )

    return canonical if kind == "json" else encode


def plain_classes(type_name: str) -> Collection[type]:
    """Return the classes whose values are all of a declared type; ``""`` is a column without one.

    Of plain values, that is, whose canonical bytes say at once what SQLite stores.
    """
    return _ALWAYS_FIT.get(kind_of(type_name), ())


def undeclared(column: str, value: object) -> ValidationFailed | None:
    """Get the error for a value that only a declared column accepts; None for any other value."""
    for python_type, type_name in _DECLARED_AS:
        if isinstance(value, python_type):
            return ValidationFailed(
                f"a {type(value).__name__} is not JSON: declare the column {column} as "
                f"{type_name}, which is written and read as one, or convert it first"
            )
    return None


def read_value(kind: str, raw: CanonicalJson) -> Any:
    """Return the Python value of a declared column, by its `kind_of`."""
    value = parse(raw)
    if value.__class__ is int:
        if kind == "decimal":
            return _decimal_of(raw, value)
        if kind == "number" or value not in _INT64:  # a double, as SQLite holds it too
            return float(value)
    elif kind == "decimal" and value.__class__ is float:
        return _decimal_of(raw, value)
    read = READ.get(kind)
    return value if read is None else read(value)


def _decimal_of(raw: CanonicalJson, value: float) -> Decimal | float:
    try:
        return decimal_of(raw.decode())
    except ValueError:  # it has an exponent
        return value


def _date_as_json(value: object) -> object:
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    return value.isoformat() if is_date else value  # type: ignore[attr-defined]


def timestamp_as_json(value: object) -> object:
    """Return the text of a datetime; anything else unchanged."""
    if not isinstance(value, datetime):
        return value
    offset = value.utcoffset()
    if offset is not None and offset.total_seconds() % 60:
        value = value.astimezone(UTC)  # RFC 3339 has no seconds in an offset, as old zones do
    return value.isoformat()


def _decimal_as_json(value: object) -> object:
    return decimal_text(value) if isinstance(value, Decimal) else _integer_as_json(value)


def decimal_text(value: Decimal) -> str:
    """Return a decimal's text, without an exponent."""
    is_near = value.is_finite() and abs(value.adjusted()) <= _PLAIN_EXPONENT_MAX
    return format(value, "f") if is_near else str(value)


def _integer_as_json(value: object) -> object:
    return str(int(value)) if isinstance(value, int) and value not in _EXACT_INTS else value


def bytes_as_json(value: object) -> object:
    """Return the base64 text of bytes; anything else unchanged."""
    if isinstance(value, BINARY):
        return base64.b64encode(value).decode()
    return value


def _text_as(made: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the function that converts a cell's text; other text stays unchanged."""

    def read(cell: Any) -> Any:
        if cell.__class__ is not str:
            return cell
        try:
            return made(cell)
        except (ValueError, OverflowError):
            return cell

    return read


def _integer(cell: Any) -> Any:
    is_integer = isinstance(cell, str) and fits("integer", f'"{cell}"'.encode())
    return int(cell) if is_integer else cell


_ANY: Final = (str, bool, int, float)
_ALWAYS_FIT: Final[Mapping[str, tuple[type, ...]]] = {
    "": _ANY,
    "json": _ANY,
    "string": (str,),
    "boolean": (bool,),
    "number": (float, int),
}
"""Classes whose values are of a type, all of them."""
_PYTHON_ONLY: Final = tuple(python_type for python_type, _ in _DECLARED_AS)
_AS_JSON: Final[Mapping[str, Callable[[object], object]]] = {
    "date": _date_as_json,
    "timestamp": timestamp_as_json,
    "decimal": _decimal_as_json,
    "integer": _integer_as_json,
    "bytes": bytes_as_json,
}
READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": lambda cell: cell == 1 if cell.__class__ is int and 0 <= cell <= 1 else cell,
    "date": _text_as(date_of),
    "timestamp": _text_as(timestamp_of),
    "decimal": _text_as(decimal_of),
    "integer": _integer,
    "bytes": _text_as(bytes_of),
}
"""By `kind_of`, what reads a value, or the cell that SQLite stores for it."""
