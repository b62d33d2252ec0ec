"""Decimals in SQL: stored as the digits that were written, compared as the numbers they are.

A column that is declared ``decimal(p,s)`` is text with this collation, so comparing, sorting,
``min``, ``max`` and indexes are exact; SQLite's own command line knows a collation of this name
that does the same. What is no decimal comes behind all that are, as text.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

COLLATION: Final = "decimal"
_DECIMAL: Final = re.compile(
    r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,3})?"
)


def compare(left: str, right: str) -> int:
    """Give less than 0, 0 or more than 0, as the one comes before, with or behind the other."""
    one, other = _key(left), _key(right)
    return (one > other) - (one < other)


def _key(text: str) -> tuple[int, Decimal, str]:
    if _DECIMAL.fullmatch(text):
        return 0, Decimal(text), ""
    return 1, Decimal(0), text
