"""Canonical JSON ⇄ what an app finds in its SQLite columns.

Text, integers and reals as themselves, booleans as 1 and 0, objects and arrays as JSON text, null
as NULL. The exact value stays in the row state: a cell is for reading, never for merging.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from lakesync.core.values import CanonicalJson

Cell: TypeAlias = "str | int | float | None"

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
