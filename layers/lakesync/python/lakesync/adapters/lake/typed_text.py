"""Values of typed lake columns to canonical JSON and back.

It does what `lakesync_spark.iceberg.typed_text` does. A typed value stands for one text; any other
text is kept beside it, and is not this module's.
Law L2: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.column_types import DECIMAL_DIGITS_MAX, precision_scale
from lakesync.core.values import NULL, canonical

if TYPE_CHECKING:
    from lakesync.core.values import CanonicalJson

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
