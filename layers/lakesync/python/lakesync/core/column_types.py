"""Column types: their names, the values that they hold, and how they may widen.

Values arrive as canonical JSON. Values that JSON cannot express travel as text: dates, bytes,
integers beyond 2^53 and decimals that a double would round.

Canonical JSON becomes values of typed columns, of SQL databases and of the lake, and is made of
them again. For the lake it is done as `lakesync_spark.iceberg.typed_text` does it. A typed value
stands for one text; any other text is kept beside it, and is not this module's.
Laws S1: ``docs/spec/schema.md``; L2: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import NULL, canonical, text_of
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.delta import CanonicalJson

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


# --- typed values ---------------------------------------------------------------------------------


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


# --- typed columns of the lake --------------------------------------------------------------------


_EXACT_INT_MAX: Final = (1 << 53) - 1
_EXACT_DIGITS: Final = 15
"""Decimal digits that a double carries, whatever they are."""
_EXACT: Final = Context(prec=DECIMAL_DIGITS_MAX)
_CONTROL: Final = re.compile("[\x00-\x07\x0b\x0e-\x1f]")
"""Characters that JSON writes by number."""


def typed_text_of(type_name: str, value: object) -> CanonicalJson:
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
    is_exact = value is not None and (
        type_name == "json" or typed_text_of(type_name, value) == text
    )
    if type_name == "number" and isinstance(value, float | int):
        is_exact = is_exact and b"e" not in text and abs(value) < float(f"1e{_EXACT_DIGITS}")
    if type_name == "string" and isinstance(value, str):
        is_exact = is_exact and not _CONTROL.search(value)
    return None if text == NULL or is_exact else text.decode()
