"""Which JSON text a typed value of the lake stands for, said without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

from lakesync.core.column_types import lost_text as kept_text
from lakesync.core.column_types import typed_text_of
from lakesync.core.column_types import value_of as typed_value

__all__ = ["kept_text", "text_in_lake", "typed_value"]


def text_in_lake(kind: str, value: object) -> bytes:
    if isinstance(value, datetime):
        return typed_text_of(kind, value.replace(tzinfo=UTC))
    return typed_text_of(kind, bytes(value) if isinstance(value, bytearray) else value)
