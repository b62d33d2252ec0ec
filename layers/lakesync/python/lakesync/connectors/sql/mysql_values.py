"""MySQL's and MariaDB's values as JSON, from what the driver returns."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.sql.values import (
    Bound,
    PythonValues,
    base64_text,
    bytes_from,
    same,
)
from lakesync.core.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.port import SourceColumn

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\).*")
_TYPES: Final = (
    (re.compile(r"boolean|bool|tinyint\(1\)"), "boolean"),
    (re.compile(r"(small|big|tiny|medium)?int(eger)?\b.*"), "integer"),
    (re.compile(r"real|double.*|float.*"), "number"),
    (re.compile(r"timestamp.*|datetime.*"), "timestamp"),
    (re.compile(r"date"), "date"),
    (re.compile(r".*blob|(var)?binary.*|bit\(\d+\)"), "bytes"),
    (re.compile(r"json"), "json"),
)
_CHOICES: Final = re.compile(r"(enum|set)\((.*)\)", re.IGNORECASE | re.DOTALL)
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")
_UNORDERED: Final = re.compile(
    r"float.*|enum|set|json|geometry.*|.*point|.*linestring|.*polygon|geomcollection|vector.*"
)
"""Types that are not compared as they are printed: a float has more digits than its text, and an
ENUM or SET whose members are not known, as in a query, is sorted by their numbers."""


class MySqlValues(PythonValues):
    """`lakesync.connectors.sql.values.Values` of MySQL and MariaDB.

    A column is altered with our type: the log has less of the types, and tells of every statement
    that alters a table.
    """

    def column_type(self, source_type: str) -> str:
        """Return the column type for a type as the catalogue spells it."""
        digits = _DECIMAL.fullmatch(source_type)
        if digits:
            precision, scale = int(digits[1]), int(digits[2])
            return f"decimal({precision},{scale})" if precision <= DECIMAL_DIGITS_MAX else "string"
        if source_type.startswith("bigint") and source_type.endswith("unsigned"):
            return "string"
        return next((ours for theirs, ours in _TYPES if theirs.fullmatch(source_type)), "string")

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return the form of a key in the column's own order.

        Members of ENUM and SET are sorted by their numbers, and compared so with a number.
        """
        kind = column.source_type.lower()
        choices = _CHOICES.fullmatch(column.source_type)
        if choices:
            return Bound(_number_of(choices[1].lower(), _MEMBER.findall(choices[2])), same)
        if _UNORDERED.fullmatch(kind):
            return None
        if kind.startswith("bit"):
            return Bound(lambda value: int.from_bytes(value, "big"), same)
        if column.type == "bytes":
            return Bound(base64_text, bytes_from)
        if kind.startswith("decimal"):
            return Bound("{:f}".format, Decimal)
        return Bound(_plain, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        """Return the function to what the driver sends."""
        if column.type == "bytes":
            is_number = column.source_type.lower().startswith("bit")
            return _number_from_base64 if is_number else bytes_from
        return _decimal if column.source_type.lower().startswith("decimal") else same


def _number_of(kind: str, members: Sequence[str]) -> Callable[[str], int]:
    numbers = {member.replace("''", "'"): place for place, member in enumerate(members)}
    if kind == "enum":
        return lambda text: numbers.get(text, -1) + 1  # 0 is the empty text of a wrong value
    return lambda text: sum(1 << numbers[part] for part in text.split(",") if part in numbers)


def _plain(value: str | float | date) -> str | int | float:
    """Return text and numbers as they are; days and instants, which have no zone, as text."""
    return value.isoformat() if isinstance(value, date) else value


def _number_from_base64(text: str) -> int:
    return int.from_bytes(bytes_from(text), "big")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError as exc:
        raise ValueError(f"{text[:60]} is no number") from exc
