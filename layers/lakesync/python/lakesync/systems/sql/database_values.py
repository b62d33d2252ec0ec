"""Values of drivers, of dlt and of Arrow as JSON; and what a database says of its values."""

from __future__ import annotations

import base64
import binascii
import json
import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.connectors.pages import utc_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.connectors.port import SourceColumn

# --- a driver's values ----------------------------------------------------------------------------


EXACT_INT_MAX: Final = (1 << 53) - 1
"""The greatest whole number that every reader of JSON takes exactly (RFC 8259, section 6)."""


class Bound(NamedTuple):
    """How a column's values say where a page ended, in the order in which the database sorts."""

    to_json: Callable[[Any], str | int | float]
    """From a value that was read."""
    to_parameter: Callable[[Any], Any]
    """From that JSON to a parameter that the database compares with the column in that order."""


class Values(Protocol):
    """How the values of one kind of database are read."""

    def column_type(self, source_type: str) -> str:
        """Return the column type for a type of the source; text if no other fits."""
        ...

    def alters(self, column: SourceColumn) -> str:
        """Return what an alteration of a column changes if its rows must be read again."""
        ...

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of the last statement, each value as `converter` takes it."""
        ...

    def converter(self, column: SourceColumn) -> Callable[[Any], Any]:
        """Return the function from a column's values, without NULL, to JSON.

        It raises a ValueError for a value that JSON does not have.
        """
        ...

    def instant(self, value: Any) -> datetime | None:
        """Return an instant that was read; None for NULL.

        Raises:
            ValueError: it is none that Python has.
        """
        ...

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return how rows are read page by page in a column's order; None if they cannot be."""
        ...

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        """Return the function from a value in a row's id to a parameter that equals it.

        It raises a ValueError for what is no such value.
        """
        ...


class PythonValues:
    """`Values` of whatever gives Python's: a driver, Arrow."""

    def column_type(self, source_type: str) -> str:
        """Return the type itself: it is one of ours."""
        return source_type

    def alters(self, column: SourceColumn) -> str:
        return column.type

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows

    def converter(self, column: SourceColumn) -> Callable[[Any], Any]:
        known, other = kinds_of(column.type).get, converter_of(column.type)
        return lambda value: (known(value.__class__) or other)(value)

    def instant(self, value: object) -> datetime | None:
        """Return an instant; one without a zone is in UTC."""
        if value is None or isinstance(value, datetime):
            return value
        raise ValueError(f"{str(value)[:60]} is no time that can be compared")

    def bound(self, column: SourceColumn) -> Bound | None:  # noqa: ARG002 - any column
        return Bound(same, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:  # noqa: ARG002 - as above
        return same


def json_value(value: Any, type_name: str) -> Any:
    """Return a driver's value as JSON, in the form of its column's type.

    Raises:
        ValueError: JSON has no such value.
    """
    return None if value is None else converter_of(type_name)(value)


def converter_of(type_name: str) -> Callable[[Any], Any]:
    """Return the function that converts non-null values to JSON, as `json_value` does."""
    return _CONVERTERS.get(type_name, exact)


def kinds_of(type_name: str) -> Mapping[type, Callable[[Any], Any]]:
    """Return the converter for a value's type; most types are found directly."""
    return _KINDS.get(type_name, _EXACT)


def exact(value: Any) -> Any:
    """Return a value in a form that JSON does not round."""
    return _by_kind(_EXACT, value)


def same(value: Any) -> Any:
    return value


def whole_number(value: int) -> int | str:
    """Return a whole number; as text, if it is beyond `EXACT_INT_MAX`."""
    return value if -EXACT_INT_MAX <= value <= EXACT_INT_MAX else str(value)


def finite(value: float) -> float:
    """Return a number.

    Raises:
        ValueError: JSON does not have it.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return value


def clock_text(value: timedelta) -> str:
    """Return a time of day, or a duration, as MySQL prints it: ``-01:30:00``."""
    micros = value // timedelta(microseconds=1)
    seconds, part = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{'-' if micros < 0 else ''}{hour:02}:{minute:02}:{second:02}"
    return f"{text}.{part:06}" if part else text


def boolean(value: Any) -> Any:
    """Return a truth value; a number other than 0 and 1 stays one, so that nothing is lost."""
    return bool(value) if value in {0, 1} else value


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else _by_kind(_TEXT, value)


def _driver_json(value: Any) -> Any:
    """Return a JSON value; MySQL's driver returns its text."""
    return exact(json.loads(value) if isinstance(value, str) else value)


def _by_kind(kinds: Mapping[type, Callable[[Any], Any]], value: Any) -> Any:
    convert = kinds.get(type(value))
    if convert is None:  # a driver's subclass, or an unsupported type
        convert = next((kinds[kind] for kind in kinds if isinstance(value, kind)), str)
    return convert(value)


def _parts(value: Iterable[Any]) -> list[Any]:
    return [exact(part) for part in value]


def _members(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): exact(part) for name, part in value.items()}


def base64_text(value: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(bytes(value)).decode()


def bytes_from(text: str) -> bytes:
    """Return the bytes of `base64_text`.

    Raises:
        ValueError: it is no such text.
    """
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"{text[:60]} is no base64") from exc


_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {
    datetime: utc_text,  # before days, its base class
    date: date.isoformat,
    timedelta: clock_text,
    Decimal: "{:f}".format,
    bytes: base64_text,
    bytearray: base64_text,
    memoryview: base64_text,
}
"""Converters to text for types whose text is not what Python prints."""
_EXACT: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: same,
    bool: same,  # before whole numbers, its base class
    type(None): same,
    int: whole_number,
    float: finite,
    dict: _members,
    list: _parts,
    tuple: _parts,
    **_TEXT,
}
_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": boolean,
    "string": _text,
    "json": _driver_json,
}
_KINDS: Final[Mapping[str, Mapping[type, Callable[[Any], Any]]]] = {
    "boolean": {bool: same},
    "string": {str: same, **_TEXT},
    "json": {},
}


# --- PostgreSQL -----------------------------------------------------------------------------------


# --- MySQL and MariaDB ----------------------------------------------------------------------------
