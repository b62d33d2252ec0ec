"""Values of typed lake columns back to canonical JSON, as `lakesync_spark.typed_text` does it.

A typed value stands for one text; any other text is kept beside it, and is not this module's.
Law L2: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import precision_scale
from lakesync.core.values import canonical

if TYPE_CHECKING:
    from lakesync.core.values import CanonicalJson

_EXACT_INT_MAX: Final = (1 << 53) - 1
_EXACT_DIGITS: Final = 15
"""Decimal digits that a double carries, whatever they are."""


def text_of(type_name: str, value: object) -> CanonicalJson:
    """Give the text that a value stands for.

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
