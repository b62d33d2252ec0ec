"""PostgreSQL's values as JSON, from the text that the server prints.

A query's result and the log of changes have the same text for a value, with the same settings of
the session: `SETTINGS`. So one converter for each type serves every way of reading, and no value
is beyond it: where Python has no such day, as ``infinity`` or ``0044-03-15 BC``, that text is the
value.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.sql.values import (
    Bound,
    base64_text,
    bytes_from,
    exact,
    finite,
    same,
    whole_number,
)
from lakesync.core.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.port import SourceColumn

SETTINGS: Final = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
"""Settings of a session by which values are printed; the time zone is UTC for all sessions."""
_RESOLVED: Final = """(
    WITH RECURSIVE whole AS (
        SELECT t.*, {modifier} AS modifier FROM pg_catalog.pg_type t WHERE t.oid = {type_id}
        UNION ALL
        SELECT t.*, w.typtypmod FROM whole w JOIN pg_catalog.pg_type t ON t.oid = w.typbasetype
        WHERE w.typtype = 'd')
    SELECT CASE WHEN w.typoutput <> 'array_out'::regproc THEN format_type(w.oid, w.modifier)
        ELSE (
            WITH RECURSIVE element AS (
                SELECT t.*, w.modifier AS modifier FROM pg_catalog.pg_type t
                WHERE t.oid = w.typelem
                UNION ALL
                SELECT t.*, e.typtypmod FROM element e
                JOIN pg_catalog.pg_type t ON t.oid = e.typbasetype WHERE e.typtype = 'd')
            SELECT format_type(e.oid, e.modifier) FROM element e WHERE e.typtype <> 'd') || '[]'
        END
    FROM whole w WHERE w.typtype <> 'd')"""
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MODIFIERS: Final = re.compile(r"\([\d,-]+\)")


def resolved(type_id: str, modifier: str) -> str:
    """Return the SQL for the name of a type, from the SQL of its number and its modifier.

    A domain is the type that it is of, and an array the type of its elements, followed by ``[]``:
    so a value's text can be read by that name alone.
    """
    return _RESOLVED.format(type_id=type_id, modifier=modifier)


class PostgresValues:
    """`lakesync.connectors.sql.values.Values` of PostgreSQL."""

    def column_type(self, source_type: str) -> str:
        """Return the column type for a resolved type."""
        if source_type.endswith("[]"):
            return "json"
        numeric = _NUMERIC.fullmatch(source_type)
        if numeric:
            precision, scale = int(numeric[1]), int(numeric[2])
            fits = precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision
            return f"decimal({precision},{scale})" if fits else "string"
        return _known(source_type)[0]

    def alters(self, column: SourceColumn) -> str:
        """Return the source's type: every other one may print other text."""
        return column.source_type

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        """Return the rows as the bytes of the server's text; None for NULL."""
        result = cursor.pgresult
        columns = range(result.nfields)
        value = result.get_value
        return [[value(row, column) for column in columns] for row in range(result.ntuples)]

    def converter(self, column: SourceColumn) -> Callable[[bytes], Any]:
        """Return the function from the text of a column's values to JSON."""
        return _converter(column.source_type)

    def instant(self, value: bytes | None) -> datetime | None:
        """Return an instant, or a time without a zone, from its text."""
        if value is None:
            return None
        try:
            return datetime.fromisoformat(value.decode())
        except ValueError:
            raise ValueError(f"{value.decode()[:60]} is no time that can be compared") from None

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return the text itself: as a parameter it is of the column's type."""
        return None if column.type == "json" else Bound(bytes.decode, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        """Return the function to the text of a value."""
        return _hexadecimal if column.type == "bytes" else same


def _converter(source_type: str) -> Callable[[bytes], Any]:
    if source_type.endswith("[]"):
        element = source_type.removesuffix("[]")
        convert = _converter(element)
        tokens = _TOKENS_OF_BOXES if element == "box" else _TOKENS
        return lambda data: _array(data, convert, tokens)
    return _known(source_type)[1]


def _known(source_type: str) -> tuple[str, Callable[[bytes], Any]]:
    return _TYPES.get(_MODIFIERS.sub("", source_type), ("string", bytes.decode))


def _boolean(data: bytes) -> bool:
    return data == b"t"


def _integer(data: bytes) -> int | str:
    return whole_number(int(data))


def _float(data: bytes) -> float:
    return finite(float(data))


def _time(data: bytes) -> str:
    """Return a time without a zone as in ISO 8601, with microseconds if it has a fraction."""
    text = data.decode()
    if text[10:11] != " " or text.endswith(" BC"):
        return text
    return f"{text[:10]}T{text[11:]}" if len(text) <= _TO_SECONDS else _padded(text)


def _instant(data: bytes) -> str:
    """Return an instant in UTC, as in ISO 8601."""
    text = data.decode()
    if text[10:11] != " " or not text.endswith("+00"):
        return text
    text = text[:-3]
    return f"{text[:10]}T{text[11:]}Z" if len(text) <= _TO_SECONDS else f"{_padded(text)}Z"


def _padded(text: str) -> str:
    return f"{text[:10]}T{text[11:]:0<15}"


_TO_SECONDS: Final = len("2026-05-17 08:00:00")


def _bytes(data: bytes) -> str:
    return base64_text(bytes.fromhex(data[2:].decode()))


def _json(data: bytes) -> Any:
    return exact(json.loads(data))


def _hexadecimal(text: str) -> str:
    return f"\\x{bytes_from(text).hex()}"


_TYPES: Final[Mapping[str, tuple[str, Callable[[bytes], Any]]]] = {
    "boolean": ("boolean", _boolean),
    "smallint": ("integer", int),
    "integer": ("integer", int),
    "bigint": ("integer", _integer),
    "real": ("number", _float),
    "double precision": ("number", _float),
    "date": ("date", bytes.decode),
    "timestamp without time zone": ("timestamp", _time),
    "timestamp with time zone": ("timestamp", _instant),
    "bytea": ("bytes", _bytes),
    "json": ("json", _json),
    "jsonb": ("json", _json),
}
"""Types that are not text, by their names without modifiers."""
_TOKENS: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_TOKENS_OF_BOXES: Final = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{};"]+)', re.DOTALL)
"""Braces, quoted elements, others; only boxes are separated by semicolons."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _array(data: bytes, convert: Callable[[bytes], Any], tokens: re.Pattern[str]) -> list[Any]:
    """Return an array as nested lists.

    Its text: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO. The first elements'
    numbers, if they are not 1, are no part of its values.
    """
    text = data.decode()
    whole: list[Any] = []
    inside = [whole]
    for brace, quoted, plain in tokens.findall(text[text.index("{") :]):
        if brace == "{":
            inside[-1].append([])
            inside.append(inside[-1][-1])
        elif brace:
            inside.pop()
        elif plain:
            inside[-1].append(None if plain == "NULL" else convert(plain.encode()))
        else:
            inside[-1].append(convert(_ESCAPED.sub(r"\1", quoted).encode()))
    array: list[Any] = whole[0]
    return array
