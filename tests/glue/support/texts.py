"""Which JSON text a typed value of the lake stands for, said without Spark."""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Decimal

from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.column_types import precision_scale
from lakesync.core.values import NULL, canonical

_EXACT_INT_MAX = (1 << 53) - 1
_EXACT_DIGITS = 15
_CONTROL = re.compile("[\x00-\x07\x0b\x0e-\x1f]")
"""Characters that JSON writes by number."""


def typed_value(kind: str, text: bytes) -> object:
    """Give the value of a type that a text has; None for what is unfit."""
    try:
        return sql_value(kind, text)
    except Unfit:
        return None


def kept_text(kind: str, text: bytes) -> str | None:
    """Give the text if a column of a type cannot give it back."""
    value = typed_value(kind, text)
    is_exact = value is not None and (kind == "json" or text_of(kind, value) == text)
    if kind == "number" and isinstance(value, float | int):
        is_exact = is_exact and b"e" not in text and abs(value) < float(f"1e{_EXACT_DIGITS}")
    if kind == "string" and isinstance(value, str):
        is_exact = is_exact and not _CONTROL.search(value)
    return None if text == NULL or is_exact else text.decode()


def text_of(kind: str, value: object) -> bytes:
    """Give the text that a typed value stands for."""
    if isinstance(value, Decimal):
        scale = (precision_scale(kind) or (0, 0))[1]
        is_small = abs(float(value)) < float(f"1e{_EXACT_DIGITS - scale}")
        return canonical(float(value) if is_small else f"{value:.{scale}f}")
    if kind == "integer" and isinstance(value, int):
        return canonical(value if abs(value) <= _EXACT_INT_MAX else str(value))
    if isinstance(value, datetime):
        return canonical(_instant(value.astimezone(UTC)))
    if isinstance(value, date):
        return canonical(value.isoformat())
    if isinstance(value, bytes):
        return canonical(base64.b64encode(value).decode())
    return canonical(value)


def text_in_lake(kind: str, value: object) -> bytes:
    """Give the text of a value as Spark hands it out."""
    if kind == "json":
        return str(value).encode()
    if isinstance(value, datetime):
        return text_of(kind, value.replace(tzinfo=UTC))
    return text_of(kind, bytes(value) if isinstance(value, bytearray) else value)


def _instant(value: datetime) -> str:
    fraction = f".{value.microsecond:06}".removesuffix("000") if value.microsecond else ""
    return f"{value.year:04}{value:-%m-%dT%H:%M:%S}{fraction}Z"
