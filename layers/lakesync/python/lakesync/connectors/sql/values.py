"""Values of a SQL driver as JSON, and SQL types as those of columns."""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from lakesync.core.column_types import DECIMAL_DIGITS_MAX

_EXACT_INT_MAX: Final = (1 << 53) - 1
_NUMERIC: Final = re.compile(r"(?:numeric|decimal)\((\d+),\s*(-?\d+)\)")
_TYPES: Final = (
    (re.compile(r"boolean|bool|tinyint\(1\)"), "boolean"),
    (re.compile(r"(small|big|tiny|medium)?int(eger)?\b.*"), "integer"),
    (re.compile(r"real|double( precision)?|float.*"), "number"),
    (re.compile(r"timestamp.*|datetime.*"), "timestamp"),
    (re.compile(r"date"), "date"),
    (re.compile(r"bytea|.*blob|(var)?binary.*|bit\(\d+\)"), "bytes"),
    (re.compile(r"jsonb?"), "json"),
)


def column_type(sql_type: str) -> str:
    """Give the type of a column that holds a SQL type's values; text for what is none other's."""
    if sql_type.endswith("[]"):
        return "json"
    numeric = _NUMERIC.fullmatch(sql_type)
    if numeric:
        precision, scale = int(numeric[1]), int(numeric[2])
        fits = precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
        return f"decimal({precision},{scale})" if fits else "string"
    if sql_type.startswith("bigint") and sql_type.endswith("unsigned"):
        return "string"
    return next((ours for theirs, ours in _TYPES if theirs.fullmatch(sql_type)), "string")


def json_value(value: Any, type_name: str) -> Any:
    """Give a driver's value as JSON, in the form of its column's type.

    Raises:
        ValueError: JSON has no such value.
    """
    if value is None:
        return None
    if type_name == "boolean":
        return bool(value)
    if type_name == "string" and not isinstance(value, bytes | bytearray | memoryview):
        return value if isinstance(value, str) else _as_text(value)
    if type_name == "json" and isinstance(value, str):
        return _exact(json.loads(value))  # MySQL's driver gives JSON as its text
    return _exact(value)


def _exact(value: Any) -> Any:
    """Give a value without what JSON would round."""
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT_INT_MAX else str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no JSON number")
        return value
    if isinstance(value, dict):
        return {str(name): _exact(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(part) for part in value]
    return _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return moment.isoformat() + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, timedelta):
        return str(value)
    return str(value)


def microseconds(value: object) -> int | None:
    """Give an instant in microseconds since 1970, one without a zone in UTC; None for no instant.

    Raises:
        ValueError: it is neither.
    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ValueError(f"{str(value)[:60]} is no time")  # noqa: TRY004 - a value of the source
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
