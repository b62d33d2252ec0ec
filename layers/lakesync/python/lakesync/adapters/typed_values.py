"""Canonical JSON to values of typed columns, of SQL databases and of the lake, and back.

For the lake it does what `lakesync_spark.iceberg.typed_text` does. A typed value stands for one
text; any other text is kept beside it, and is not this module's. Law L2: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_types import DECIMAL_DIGITS_MAX, fits, precision_scale
from lakesync.core.values import NULL, canonical
from lakesync.core.values import text_of as string_of

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
    return string_of(value)


def _decimal(value: CanonicalJson) -> Decimal:
    return Decimal(value.strip(b'"').decode())


def _timestamp(value: CanonicalJson) -> datetime:
    parsed = datetime.fromisoformat(string_of(value))
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


_CONVERTED: Final[Mapping[str, Callable[[CanonicalJson], Any]]] = {
    "string": _text,
    "number": float,
    "boolean": {b"true": True, b"false": False}.__getitem__,
    "json": bytes.decode,
    "integer": lambda value: int(value.strip(b'"')),
    "timestamp": _timestamp,
    "date": lambda value: date.fromisoformat(string_of(value)),
    "bytes": lambda value: base64.b64decode(string_of(value)),
}
_CHECK_BY_THEMSELVES: Final = frozenset({"string", "number", "boolean"})
"""The types whose conversion itself fails for every other value: they are the most common, and a
check before it would be half of a value's cost."""


# --- typed columns of the lake --------------------------------------------------------------------


_EXACT_INT_MAX: Final = (1 << 53) - 1
_EXACT_DIGITS: Final = 15
"""Decimal digits that a double carries, whatever they are."""
_EXACT: Final = Context(prec=DECIMAL_DIGITS_MAX)
_CONTROL: Final = re.compile("[\x00-\x07\x0b\x0e-\x1f]")
"""Characters that JSON writes by number."""


def text_of(type_name: str, value: object) -> CanonicalJson:
    """Return the text that a value stands for.

    Args:
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
        value: as Arrow hands it out; not None.
    """
    if type_name == "json":
        return str(value).encode()
    if isinstance(value, Decimal):
        scale = (precision_scale(type_name) or (0, 0))[1]
        is_small = abs(float(value)) < float(f"1e{_EXACT_DIGITS - scale}")
        return canonical(float(value) if is_small else f"{value:.{scale}f}")
    if type_name == "integer" and isinstance(value, int):
        return canonical(value if abs(value) <= _EXACT_INT_MAX else str(value))
    if isinstance(value, datetime):
        return canonical(_instant(value.astimezone(UTC)))
    if isinstance(value, date):
        return canonical(value.isoformat())
    if isinstance(value, bytes):
        return canonical(base64.b64encode(value).decode())
    return canonical(value)


def _instant(value: datetime) -> str:
    fraction = f".{value.microsecond:06}".removesuffix("000") if value.microsecond else ""
    return f"{value.year:04}{value:-%m-%dT%H:%M:%S}{fraction}Z"


def value_of(type_name: str, text: CanonicalJson) -> object:
    """Return the value of a type that a text has; None for null, and for what is unfit.

    A decimal has as many digits after the decimal point as its type: Arrow takes no more,
    not even zeros.
    """
    try:
        value = sql_value(type_name, text)
    except Unfit:
        return None
    if not isinstance(value, Decimal):
        return value
    scale = (precision_scale(type_name) or (0, 0))[1]
    return value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def lost_text(type_name: str, text: CanonicalJson) -> str | None:
    """Return the text if a column of a type cannot give it; None too for a JSON null."""
    value = value_of(type_name, text)
    is_exact = value is not None and (type_name == "json" or text_of(type_name, value) == text)
    if type_name == "number" and isinstance(value, float | int):
        is_exact = is_exact and b"e" not in text and abs(value) < float(f"1e{_EXACT_DIGITS}")
    if type_name == "string" and isinstance(value, str):
        is_exact = is_exact and not _CONTROL.search(value)
    return None if text == NULL or is_exact else text.decode()
