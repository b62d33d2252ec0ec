"""Which JSON text a typed value of the lake stands for, said without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lakesync.adapters.lake.typed_text import text_of
from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.values import NULL

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


def text_in_lake(kind: str, value: object) -> bytes:
    """Give the text of a value as Spark hands it out."""
    if isinstance(value, datetime):
        return text_of(kind, value.replace(tzinfo=UTC))
    return text_of(kind, bytes(value) if isinstance(value, bytearray) else value)
