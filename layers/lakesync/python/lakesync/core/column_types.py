"""Column types: their names, the values that they hold, and how they may widen.

Values arrive as canonical JSON. Values that JSON cannot express travel as text: dates, bytes,
integers beyond 2^53 and decimals that a double would round.
Law S1: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lakesync.core.values import text_of
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.values import CanonicalJson

TYPES: Final = (
    "string", "number", "boolean", "json", "null",
    "integer", "decimal", "timestamp", "date", "bytes",
)  # fmt: skip
DECIMAL_DIGITS_MAX: Final = 38
"""Digits of a decimal: what Iceberg, Spark and Athena store in 128 bits."""
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_DECIMAL_VALUE = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
# Narrower than Python's ISO 8601: the form that every store of the lake reads alike (RFC 3339).
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    _DATE.pattern + r"[T ]([01][0-9]|2[0-3]):[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?"
)
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBER_START: Final = b"-0123456789"
_TYPES_REMEMBERED: Final = 1_024


@lru_cache(_TYPES_REMEMBERED)
def precision_scale(type_name: str) -> tuple[int, int] | None:
    """Return ``(p, s)`` of a decimal type, None for any other.

    Raises:
        SchemaMismatch: the type is not one of `TYPES`.
    """
    match = _DECIMAL.fullmatch(type_name)
    if match is None:
        if type_name not in TYPES or type_name == "decimal":
            if type_name == "decimal":
                raise SchemaMismatch(
                    "decimal needs its digits, all of them and those behind the point: "
                    "decimal(9,2)",
                    field="columns.type",
                )
            names = ", ".join(name for name in TYPES if name != "decimal")
            raise SchemaMismatch(
                f"{type_name[:40]!r} is not a type; use one of {names}, decimal(p,s)",
                field="columns.type",
            )
        return None
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
        raise SchemaMismatch(
            f"{type_name}: p is 1 to {DECIMAL_DIGITS_MAX} and s at most p", field="columns.type"
        )
    return precision, scale


def fits(type_name: str, value: CanonicalJson) -> bool:
    """Return whether a value, other than null, is of a type."""
    simple = _FITS.get(type_name)
    if simple is not None:
        return simple(value)
    digits = precision_scale(type_name)
    return digits is not None and _fits_decimal(value, *digits)


def _fits_integer(value: CanonicalJson) -> bool:
    # Integers beyond 2^53, which a JSON number cannot carry, travel as text. "007" is another text.
    text = value.strip(b'"')
    return _INTEGER.fullmatch(text) is not None and int(text) in _INT64


def _fits_decimal(value: CanonicalJson, precision: int, scale: int) -> bool:
    match = _DECIMAL_VALUE.fullmatch(value.strip(b'"').decode())
    if match is None:
        return False
    whole, fraction = match[1].lstrip("0"), (match[2] or "").rstrip("0")
    return len(whole) <= precision - scale and len(fraction) <= scale


def _fits_text(check: Callable[[str], object]) -> Callable[[CanonicalJson], bool]:
    def fits_text(value: CanonicalJson) -> bool:
        if value[:1] != b'"':
            return False
        try:
            check(text_of(value))
        except (ValueError, OverflowError):
            return False
        return True

    return fits_text


def timestamp_of(text: str) -> datetime:
    """Return the time that a timestamp's text names, with its offset, if it names one.

    Digits beyond microseconds are cut off. Raises ``ValueError`` or ``OverflowError`` for other
    text.
    """
    if _TIMESTAMP.fullmatch(text) is None:
        raise ValueError(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo:
        moment.astimezone(UTC)  # the years 1 to 9999 are UTC's, so that stores can hold it
    return moment


def date_of(text: str) -> date:
    """Return the date that a text names; raises ``ValueError`` for other text."""
    if _DATE.fullmatch(text) is None:
        raise ValueError(text)
    return date.fromisoformat(text)


def bytes_of(text: str) -> bytes:
    """Return the bytes of base64 text; raises ``ValueError`` for other text."""
    return base64.b64decode(text, validate=True)


def decimal_of(text: str) -> Decimal:
    """Get the decimal that a text names, digit by digit; raises ``ValueError`` for other text."""
    if _DECIMAL_VALUE.fullmatch(text) is None:
        raise ValueError(text[:40])
    return Decimal(text)


_FITS: Final[Mapping[str, Callable[[CanonicalJson], bool]]] = {
    "string": lambda value: value[:1] == b'"',
    "number": lambda value: value[:1] in _NUMBER_START,
    "boolean": lambda value: value in {b"true", b"false"},
    "json": lambda _: True,
    "null": lambda _: False,
    "integer": _fits_integer,
    "timestamp": _fits_text(timestamp_of),
    "date": _fits_text(date_of),
    "bytes": _fits_text(bytes_of),
}


def widens(current: str, wanted: str) -> bool:
    """Return whether a column may change its type: each value it holds is also one of the new type.

    An integer does not widen to a number: a text may hold an integer that no number can.
    """
    if current in {"null", wanted}:
        return True
    narrow, wide = precision_scale(current), precision_scale(wanted)
    if narrow is None or wide is None:
        return False
    return wide[1] == narrow[1] and wide[0] >= narrow[0]
