"""Canonical JSON → what an app finds in its SQLite columns, and how decimals compare there.

Text, integers and reals as themselves, booleans as 1 and 0, objects and arrays as JSON text, null
as NULL. The exact value stays in the row state: a cell is for reading, never for merging.

A column that is declared ``decimal(p,s)`` is text with the collation `COLLATION`, so comparing,
sorting, ``min``, ``max`` and indexes are exact; SQLite's own command line knows a collation of this
name that does the same. What is no decimal comes behind all that are, as text.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from lakesync.core.values import CanonicalJson

Cell: TypeAlias = "str | int | float | None"

COLLATION: Final = "decimal"
_DECIMAL: Final = re.compile(
    r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,3})?"
)
_WORDS: Final[dict[bytes, int | None]] = {b"null": None, b"true": 1, b"false": 0}
_QUOTE: Final = ord('"')
_BRACKETS: Final = b"[{"
_INT64 = range(-(1 << 63), 1 << 63)
_REMEMBERED: Final = 4_096


def cell(value: CanonicalJson) -> Cell:
    """Give what SQLite stores for a value."""
    first = value[0]
    if first == _QUOTE:
        return value[1:-1].decode() if b"\\" not in value else _unescaped(value)
    return value.decode() if first in _BRACKETS else _scalar(value)


def _unescaped(value: CanonicalJson) -> str:
    text: str = json.loads(value)
    return text


# Columns are full of the same few numbers and words; these are short, so remembering is cheap.
@lru_cache(_REMEMBERED)
def _scalar(value: CanonicalJson) -> int | float | None:
    if value in _WORDS:
        return _WORDS[value]
    try:
        number = int(value)
    except ValueError:
        return float(value)
    # Canonical JSON prints a double such as 1e20 in digits; SQLite's integers end at 2^63.
    return number if number in _INT64 else float(value)


def compare(left: str, right: str) -> int:
    """Give less than 0, 0 or more than 0, as the one comes before, with or behind the other."""
    one, other = _key(left), _key(right)
    return (one > other) - (one < other)


def _key(text: str) -> tuple[int, Decimal, str]:
    if _DECIMAL.fullmatch(text):
        return 0, Decimal(text), ""
    return 1, Decimal(0), text
