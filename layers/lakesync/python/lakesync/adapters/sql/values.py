"""Converts canonical JSON to values of SQL columns."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_types import fits
from lakesync.core.values import NULL, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.values import CanonicalJson


class Unfit(Exception):
    """A value that does not fit its column."""


def sql_value(type_name: str, value: CanonicalJson | None) -> object:
    """Return a value as a Python object: None for null, and for a column that the row lacks.

    Timestamps without a zone are in UTC; they are truncated to microseconds.

    Raises:
        Unfit: the value is not of the type.
    """
    return None if value is None or value == NULL else converter(type_name)(value)


@cache
def converter(type_name: str) -> Callable[[CanonicalJson], object]:
    """Return the function that converts a non-null value of a type, or raises `Unfit`."""
    convert = _CONVERTED.get(type_name, _decimal)
    is_checked = type_name in _CHECK_BY_THEMSELVES

    def converted(value: CanonicalJson) -> object:
        try:
            if is_checked or fits(type_name, value):
                return convert(value)
        except (KeyError, ValueError, OverflowError) as exc:
            if fits(type_name, value):
                raise Unfit(f"a {type_name} is out of range") from exc
        shown = value[:40].decode(errors="replace")
        raise Unfit(f"{shown} is no {type_name}")

    return converted


def _text(value: CanonicalJson) -> str:
    if value[:1] != b'"':
        raise ValueError(value)
    return text_of(value)


def _decimal(value: CanonicalJson) -> Decimal:
    return Decimal(value.strip(b'"').decode())


def _timestamp(value: CanonicalJson) -> datetime:
    parsed = datetime.fromisoformat(text_of(value))
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


_CONVERTED: Final[Mapping[str, Callable[[CanonicalJson], Any]]] = {
    "string": _text,
    "number": float,
    "boolean": {b"true": True, b"false": False}.__getitem__,
    "json": bytes.decode,
    "integer": lambda value: int(value.strip(b'"')),
    "timestamp": _timestamp,
    "date": lambda value: date.fromisoformat(text_of(value)),
    "bytes": lambda value: base64.b64decode(text_of(value)),
}
_CHECK_BY_THEMSELVES: Final = frozenset({"string", "number", "boolean"})
"""The types whose conversion itself fails for every other value: they are the most common, and a
check before it would be half of a value's cost."""
