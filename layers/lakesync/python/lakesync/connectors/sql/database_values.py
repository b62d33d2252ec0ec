"""Values of SQL databases, and of dlt, as JSON; and what a database says of its values.

PostgreSQL's values as JSON, from the text that the server prints. A query's result and the log of
changes have the same text for a value, with the same settings of the session: `POSTGRES_SETTINGS`.
So one converter for each type serves every way of reading, and no value is beyond it: where Python
has no such day, as ``infinity`` or ``0044-03-15 BC``, that text is the value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.connectors.pages import utc_text
from lakesync.core.column_types import DECIMAL_DIGITS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.connectors.port import SourceColumn

# --- a driver's values ----------------------------------------------------------------------------


EXACT_INT_MAX: Final = (1 << 53) - 1
"""The greatest whole number that every reader of JSON takes exactly (RFC 8259, section 6)."""


class Bound(NamedTuple):
    """How a column's values say where a page ended, in the order in which the database sorts."""

    to_json: Callable[[Any], str | int | float]
    """From a value that was read."""
    to_parameter: Callable[[Any], Any]
    """From that JSON to a parameter that the database compares with the column in that order."""


class Values(Protocol):
    """How the values of one kind of database are read."""

    def column_type(self, source_type: str) -> str:
        """Return the column type for a type of the source; text if no other fits."""
        ...

    def alters(self, column: SourceColumn) -> str:
        """Return what an alteration of a column changes if its rows must be read again."""
        ...

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of the last statement, each value as `converter` takes it."""
        ...

    def converter(self, column: SourceColumn) -> Callable[[Any], Any]:
        """Return the function from a column's values, without NULL, to JSON.

        It raises a ValueError for a value that JSON does not have.
        """
        ...

    def instant(self, value: Any) -> datetime | None:
        """Return an instant that was read; None for NULL.

        Raises:
            ValueError: it is none that Python has.
        """
        ...

    def bound(self, column: SourceColumn) -> Bound | None:
        """Return how rows are read page by page in a column's order; None if they cannot be."""
        ...

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:
        """Return the function from a value in a row's id to a parameter that equals it.

        It raises a ValueError for what is no such value.
        """
        ...


class PythonValues:
    """`Values` of whatever gives Python's: a driver, Arrow."""

    def column_type(self, source_type: str) -> str:
        """Return the type itself: it is one of ours."""
        return source_type

    def alters(self, column: SourceColumn) -> str:
        """Return our type."""
        return column.type

    def rows(self, cursor: Any) -> Sequence[Sequence[Any]]:
        """Return the rows as the driver's values."""
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows

    def converter(self, column: SourceColumn) -> Callable[[Any], Any]:
        """Return the function from Python's values to JSON."""
        known, other = kinds_of(column.type).get, converter_of(column.type)
        return lambda value: (known(value.__class__) or other)(value)

    def instant(self, value: object) -> datetime | None:
        """Return an instant; one without a zone is in UTC."""
        if value is None or isinstance(value, datetime):
            return value
        raise ValueError(f"{str(value)[:60]} is no time that can be compared")

    def bound(self, column: SourceColumn) -> Bound | None:  # noqa: ARG002 - any column
        """Return the value itself."""
        return Bound(same, same)

    def key_parameter(self, column: SourceColumn) -> Callable[[str], Any]:  # noqa: ARG002 - as above
        """Return the function to the text itself."""
        return same


def json_value(value: Any, type_name: str) -> Any:
    """Return a driver's value as JSON, in the form of its column's type.

    Raises:
        ValueError: JSON has no such value.
    """
    return None if value is None else converter_of(type_name)(value)


def converter_of(type_name: str) -> Callable[[Any], Any]:
    """Return the function that converts non-null values to JSON, as `json_value` does."""
    return _CONVERTERS.get(type_name, exact)


def kinds_of(type_name: str) -> Mapping[type, Callable[[Any], Any]]:
    """Return the converter for a value's type; most types are found directly."""
    return _KINDS.get(type_name, _EXACT)


def exact(value: Any) -> Any:
    """Return a value in a form that JSON does not round."""
    return _by_kind(_EXACT, value)


def same(value: Any) -> Any:
    """Return a value as it is."""
    return value


def whole_number(value: int) -> int | str:
    """Return a whole number; as text, if it is beyond `EXACT_INT_MAX`."""
    return value if -EXACT_INT_MAX <= value <= EXACT_INT_MAX else str(value)


def finite(value: float) -> float:
    """Return a number.

    Raises:
        ValueError: JSON does not have it.
    """
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return value


def clock_text(value: timedelta) -> str:
    """Return a time of day, or a duration, as MySQL prints it: ``-01:30:00``."""
    micros = value // timedelta(microseconds=1)
    seconds, part = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{'-' if micros < 0 else ''}{hour:02}:{minute:02}:{second:02}"
    return f"{text}.{part:06}" if part else text


def boolean(value: Any) -> Any:
    """Return a truth value; a number other than 0 and 1 stays one, so that nothing is lost."""
    return bool(value) if value in {0, 1} else value


def _text(value: Any) -> Any:
    """Return the value of a text column."""
    return value if isinstance(value, str) else _by_kind(_TEXT, value)


def _driver_json(value: Any) -> Any:
    """Return a JSON value; MySQL's driver returns its text."""
    return exact(json.loads(value) if isinstance(value, str) else value)


def _by_kind(kinds: Mapping[type, Callable[[Any], Any]], value: Any) -> Any:
    convert = kinds.get(type(value))
    if convert is None:  # a driver's subclass, or an unsupported type
        convert = next((kinds[kind] for kind in kinds if isinstance(value, kind)), str)
    return convert(value)


def _parts(value: Iterable[Any]) -> list[Any]:
    return [exact(part) for part in value]


def _members(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): exact(part) for name, part in value.items()}


def base64_text(value: bytes | bytearray | memoryview) -> str:
    """Return bytes as JSON."""
    return base64.b64encode(bytes(value)).decode()


def bytes_from(text: str) -> bytes:
    """Return the bytes of `base64_text`.

    Raises:
        ValueError: it is no such text.
    """
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"{text[:60]} is no base64") from exc


_TEXT: Final[Mapping[type, Callable[[Any], str]]] = {
    datetime: utc_text,  # before days, its base class
    date: date.isoformat,
    timedelta: clock_text,
    Decimal: "{:f}".format,
    bytes: base64_text,
    bytearray: base64_text,
    memoryview: base64_text,
}
"""Converters to text for types whose text is not what Python prints."""
_EXACT: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: same,
    bool: same,  # before whole numbers, its base class
    type(None): same,
    int: whole_number,
    float: finite,
    dict: _members,
    list: _parts,
    tuple: _parts,
    **_TEXT,
}
_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": boolean,
    "string": _text,
    "json": _driver_json,
}
_KINDS: Final[Mapping[str, Mapping[type, Callable[[Any], Any]]]] = {
    "boolean": {bool: same},
    "string": {str: same, **_TEXT},
    "json": {},
}


# --- PostgreSQL -----------------------------------------------------------------------------------


POSTGRES_SETTINGS: Final = {
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
    """`lakesync.connectors.sql.database_values.Values` of PostgreSQL."""

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
    return _POSTGRES_TYPES.get(_MODIFIERS.sub("", source_type), ("string", bytes.decode))


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


def _printed_json(data: bytes) -> Any:
    return exact(json.loads(data))


def _hexadecimal(text: str) -> str:
    return f"\\x{bytes_from(text).hex()}"


_POSTGRES_TYPES: Final[Mapping[str, tuple[str, Callable[[bytes], Any]]]] = {
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
    "json": ("json", _printed_json),
    "jsonb": ("json", _printed_json),
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


# --- MySQL and MariaDB ----------------------------------------------------------------------------


_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\).*")
_MYSQL_TYPES: Final = (
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
    """`lakesync.connectors.sql.database_values.Values` of MySQL and MariaDB.

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
        return next(
            (ours for theirs, ours in _MYSQL_TYPES if theirs.fullmatch(source_type)), "string"
        )

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
