"""What a cell of an app's table says: one value, whichever way it came in and goes out.

Rules of this module
    1. The columns of app tables have no affinity, so that SQLite converts nothing; those of
       decimals have that of text, and only text is written to them.
    2. A cell is *plain* where it can be read as one value only: text, a number, 1 and 0 for true
       and false, the JSON text of an object or a list. Any other value is *marked*: a BLOB of its
       canonical JSON. Bytes are base64 text, so a BLOB is nothing else.
    3. What a plain cell is read as depends on the column's declared kind, and on which of the
       values that look alike it has held (its *forms*). Where a column held only booleans, 1 is
       true. Where it held numbers 0 or 1 too, booleans are marked. In a column that has held
       objects or lists, texts that begin as they do are marked. A ``json`` column is like a column
       that has held everything.
    4. Where a new form changes what cells of a column are read as, these are written anew first.

JSON has no form for most of Python's dates, decimals, bytes and large integers, so they travel as
text (``docs/spec/schema.md``, S1). A declared column accepts and returns Python's types. A value of
another type in a declared column, written by another client, is returned as it was written.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.column_types import bytes_of, date_of, decimal_of, fits, timestamp_of
from lakesync.core.delta import NULL, canonical, parse, text_of
from lakesync.errors import SchemaMismatch, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lakesync.core.delta import CanonicalJson

# --- Python's values ------------------------------------------------------------------------------


_EXACT_INTS: Final = range(-(1 << 53) + 1, 1 << 53)
_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN_EXPONENT_MAX: Final = 100
"""Decimals further from 1 than this power of ten are no declared decimals, however printed."""
BINARY: Final = (bytes, bytearray, memoryview)
"""What stands for bytes, in an edit and as a parameter."""
_DECLARED_AS: Final[tuple[tuple[type[Any], str], ...]] = (
    (datetime, "timestamp"),
    (date, "date"),
    (Decimal, "decimal(p,s)"),
    *((binary, "bytes") for binary in BINARY),
)
"""Types that only a declared column takes."""
_WANTED: Final = {
    "string": "text",
    "number": "a float or an int",
    "boolean": "True or False",
    "null": "None",
    "integer": "an int of 64 bits",
    "decimal": "a Decimal with no more digits",
    "timestamp": "a datetime, or text such as 2026-05-17T08:00:00Z",
    "date": "a date, or text such as 2026-05-17",
    "bytes": "bytes, or base64 with its padding",
}


def kind_of(type_name: str) -> str:
    """Return a type without its digits: ``decimal`` for ``decimal(9,2)``."""
    return type_name.partition("(")[0]


def encoder(table: str, column: str, type_name: str) -> Callable[[object], CanonicalJson]:
    """Return a function to canonical bytes, which raises `SchemaMismatch` as S2 says."""
    kind = kind_of(type_name)
    as_json = _AS_JSON.get(kind)
    always_fit = plain_classes(type_name)

    def encode(value: object) -> CanonicalJson:
        if value.__class__ in always_fit:
            return canonical(value)
        if value is None:
            return NULL
        given = value if as_json is None else as_json(value)
        if not isinstance(given, _PYTHON_ONLY):
            raw = canonical(given)
            if fits(type_name, raw):
                return raw
        raise SchemaMismatch(
            f"{table}.{column} is declared {type_name}, which this {type(value).__name__} is not: "
            f"give it {_WANTED[kind]}, or declare it otherwise"
        )

    return canonical if kind == "json" else encode


def plain_classes(type_name: str) -> Collection[type]:
    """Return the classes whose values SQLite stores as their canonical bytes say, for a type."""
    return _ALWAYS_FIT.get(kind_of(type_name), ())


def undeclared(column: str, value: object) -> ValidationFailed | None:
    """Get the error for a value that only a declared column accepts; None for any other value."""
    for python_type, type_name in _DECLARED_AS:
        if isinstance(value, python_type):
            return ValidationFailed(
                f"a {type(value).__name__} is not JSON: declare the column {column} as "
                f"{type_name}, which is written and read as one, or convert it first"
            )
    return None


def read_value(kind: str, raw: CanonicalJson) -> Any:
    value = parse(raw)
    if value.__class__ is int:
        if kind == "decimal":
            return _decimal_of(raw, value)
        if kind == "number" or value not in _INT64:  # a double, as SQLite holds it too
            return float(value)
    elif kind == "decimal" and value.__class__ is float:
        return _decimal_of(raw, value)
    read = READ.get(kind)
    return value if read is None else read(value)


def _decimal_of(raw: CanonicalJson, value: float) -> Decimal | float:
    try:
        return decimal_of(raw.decode())
    except ValueError:  # it has an exponent
        return value


def _date_as_json(value: object) -> object:
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    return value.isoformat() if is_date else value  # type: ignore[attr-defined]


def timestamp_as_json(value: object) -> object:
    """Return the text of a datetime; anything else unchanged."""
    if not isinstance(value, datetime):
        return value
    offset = value.utcoffset()
    if offset is not None and offset.total_seconds() % 60:
        value = value.astimezone(UTC)  # RFC 3339 has no seconds in an offset, as old zones do
    return value.isoformat()


def _decimal_as_json(value: object) -> object:
    return decimal_text(value) if isinstance(value, Decimal) else _integer_as_json(value)


def decimal_text(value: Decimal) -> str:
    """Return a decimal's text, without an exponent."""
    is_near = value.is_finite() and abs(value.adjusted()) <= _PLAIN_EXPONENT_MAX
    return format(value, "f") if is_near else str(value)


def _integer_as_json(value: object) -> object:
    return str(int(value)) if isinstance(value, int) and value not in _EXACT_INTS else value


def bytes_as_json(value: object) -> object:
    """Return the base64 text of bytes; anything else unchanged."""
    if isinstance(value, BINARY):
        return base64.b64encode(value).decode()
    return value


def _text_as(made: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return the function that converts a cell's text; other text stays unchanged."""

    def read(cell: Any) -> Any:
        if cell.__class__ is not str:
            return cell
        try:
            return made(cell)
        except (ValueError, OverflowError):
            return cell

    return read


def _integer(cell: Any) -> Any:
    is_integer = isinstance(cell, str) and fits("integer", f'"{cell}"'.encode())
    return int(cell) if is_integer else cell


_ANY: Final = (str, bool, int, float)
_ALWAYS_FIT: Final[Mapping[str, tuple[type, ...]]] = {
    "": _ANY,
    "json": _ANY,
    "string": (str,),
    "boolean": (bool,),
    "number": (float, int),
}
"""Classes whose values are of a type, all of them."""
_PYTHON_ONLY: Final = tuple(python_type for python_type, _ in _DECLARED_AS)
_AS_JSON: Final[Mapping[str, Callable[[object], object]]] = {
    "date": _date_as_json,
    "timestamp": timestamp_as_json,
    "decimal": _decimal_as_json,
    "integer": _integer_as_json,
    "bytes": bytes_as_json,
}
READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "boolean": lambda cell: cell == 1 if cell.__class__ is int and 0 <= cell <= 1 else cell,
    "date": _text_as(date_of),
    "timestamp": _text_as(timestamp_of),
    "decimal": _text_as(decimal_of),
    "integer": _integer,
    "bytes": _text_as(bytes_of),
}
"""By `kind_of`, what reads a value, or the cell that SQLite stores for it."""


# --- cells ----------------------------------------------------------------------------------------


Cell: TypeAlias = "str | int | float | bytes | None"

BOOLEAN: Final = 1
"""True or false."""
BIT: Final = 2
"""The numbers 0 and 1, which look as those do."""
STRUCTURE: Final = 4
"""An object or a list."""
BRACKET: Final = 8
"""Text that begins as those do."""
OPENS: Final = ("[", "{")
_BIT_VALUES: Final = (0, 1)
_WORDS: Final[dict[bytes, int | None]] = {b"null": None, b"true": 1, b"false": 0}
_QUOTE: Final = ord('"')
_ESCAPE: Final = b"\\"
_BRACKETS: Final = b"[{"
_REMEMBERED: Final = 4_096
_BRACKETED: Final = (
    "typeof({0}) = 'text' AND (({0} >= '[' AND {0} < '\\') OR ({0} >= '{{' AND {0} < '|'))"
)
_STRUCTURES_TOO: Final = "+json"
_READ_CELLS: Final = frozenset({"boolean", "date", "timestamp", "decimal", "bytes", "json"})
"""Kinds whose plain cells are not the values. Those of numbers are."""

FORMS: Final[dict[bytes, int]] = {
    **{bytes((first, second)): STRUCTURE for first in _BRACKETS for second in range(256)},
    b'"[': BRACKET,
    b'"{': BRACKET,
    b"tr": BOOLEAN,
    b"fa": BOOLEAN,
    b"0": BIT,
    b"1": BIT,
}
"""By the first two bytes of a value, its form, if it has one."""


def cell(value: CanonicalJson) -> Cell:
    first = value[0]
    if first == _QUOTE:
        return value[1:-1].decode() if _ESCAPE not in value else text_of(value)
    return value.decode() if first in _BRACKETS else _scalar(value)


# Columns repeat the same few short numbers and words, so remembering them is cheap.
@lru_cache(_REMEMBERED)
def _scalar(value: CanonicalJson) -> int | float | None:
    if value in _WORDS:
        return _WORDS[value]
    if b"." in value:  # most texts that are not integers; an exception costs more than this
        return float(value)
    try:
        number = int(value)
    except ValueError:
        return float(value)
    # Canonical JSON prints a double such as 1e20 in digits; SQLite's integers end at 2^63.
    return number if number in _INT64 else float(value)


@lru_cache(_REMEMBERED)
def writer(kind: str, forms: int) -> Callable[[CanonicalJson], Cell] | None:
    """Return the function that makes cells of a column's values; None if all are plain.

    Args:
        kind: the column's `kind_of`, empty if it is not declared.
        forms: what it holds, the value to be written included.
    """
    plain = _PLAIN.get(kind, cell)
    marks_booleans = not _has_plain_booleans(kind, forms) and (kind == "json" or forms & BOOLEAN)
    marks_texts = kind == "json" or forms & STRUCTURE
    marked = (BOOLEAN if marks_booleans else 0) | (BRACKET if marks_texts else 0)
    if not marked:
        return None if plain is cell else plain
    return lambda value: value if FORMS.get(value[:2], 0) & marked else plain(value)


def reading(kind: str, forms: int) -> str:
    """Return as what cells of a column are read, for `reader`; empty if they are the values."""
    base = kind if kind in _READ_CELLS else ""
    if not base and _has_plain_booleans(kind, forms):
        base = "boolean"
    if forms & STRUCTURE and kind != "json":
        return base + _STRUCTURES_TOO
    return base or ("marked" if forms & BOOLEAN else "")


@lru_cache(_REMEMBERED)
def reader(name: str) -> Callable[[Any], Any]:
    """Return the function that reads cells, by the name that `reading` gave."""
    base, plus, _ = name.partition("+")
    structures = bool(plus) or base == "json"
    typed = READ.get(base)

    def read(value: Any) -> Any:
        kind = value.__class__
        if kind is str and structures and value[:1] in OPENS:
            value = structure(value)
        elif kind is bytes:
            value = parse(value)
            return value if value.__class__ is not str or typed is None else typed(value)
        return value if typed is None else typed(value)

    return read


def rewriter(
    kind: str, before: int, forms: int
) -> tuple[str, Callable[[Any], CanonicalJson]] | None:
    """Return which plain cells of a column new forms change the reading of, and how to mark them.

    The first is a condition in SQL on the column ``{0}``; None if there are no such cells.
    """
    if kind != "json" and before & BRACKET and forms & ~before & STRUCTURE:
        return _BRACKETED, canonical
    if not kind and before & BOOLEAN and forms & ~before & BIT:
        return "typeof({0}) = 'integer'", lambda content: canonical(bool(content))
    return None


def unmarked(value: Any) -> Any:
    """Return a cell of a synced column as a plain one."""
    return parse(value) if value.__class__ is bytes else value


def structure(text: str) -> Any:
    """Return the object or the list of a text; the text if it is neither."""
    try:
        return parse(text.encode())
    except ValidationFailed:
        return text


def value_of(content: Any, kind: str, forms: int) -> Any:
    """Return the JSON value that a cell, as SQL wrote it, stands for in a column."""
    as_is = content.__class__
    if as_is is str:
        is_structure = content[:1] in OPENS and (kind == "json" or forms & STRUCTURE)
        return structure(content) if is_structure else content
    if as_is is int:
        if content in _BIT_VALUES and _has_plain_booleans(kind, forms):
            return bool(content)
        return float(content) if kind == "number" and content in _EXACT_INTS else content
    return content


def is_mark(content: bytes, kind: str, forms: int) -> bool:
    """Return whether bytes in a cell are a marked value of such a column."""
    if not (kind in {"json", "decimal"} or forms & (BOOLEAN | STRUCTURE)):
        return False
    try:
        return canonical(parse(content)) == content
    except ValidationFailed:
        return False


def _has_plain_booleans(kind: str, forms: int) -> bool:
    return kind == "boolean" or (not kind and forms & (BOOLEAN | BIT) == BOOLEAN)


def _number_cell(value: CanonicalJson) -> Cell:
    shown = cell(value)
    return float(shown) if shown.__class__ is int and value not in _WORDS else shown


def _integer_cell(value: CanonicalJson) -> Cell:
    shown = cell(value)
    return int(shown) if shown.__class__ is str and fits("integer", value) else shown


def _decimal_cell(value: CanonicalJson) -> Cell:
    if value[0] == _QUOTE or value[0] in _BRACKETS or value == b"null":
        return cell(value)
    try:
        decimal_of(value.decode())
    except ValueError:
        return value  # no decimal, so SQLite would make another text of it
    return value.decode()


_PLAIN: Final = {
    "number": _number_cell,
    "integer": _integer_cell,
    "decimal": _decimal_cell,
}
