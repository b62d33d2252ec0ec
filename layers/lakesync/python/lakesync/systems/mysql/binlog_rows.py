"""Decodes rows of the binary log to the values that reading the table gives.

A reader takes the data and a place in it, and returns a value and the place after it. Numbers are
Python's, decimals and times of day their text, days and instants Python's or, where these have none
(a day 0), the text that the source gives. Text and JSON stay bytes: only wanted columns are
decoded.

Decodes MySQL's stored JSON to Python values. MariaDB's JSON is text, and does not need it.
https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html
"""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pymysql.charset import charset_by_id

from lakesync.errors import AdapterRefused
from lakesync.systems.mysql import binlog_events as tm
from lakesync.systems.mysql.binlog_events import unsigned
from lakesync.systems.sql.captured_tables import UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.systems.mysql.binlog_events import LoggedColumn, Rows

    Reader = Callable[[bytes, int], tuple[Any, int]]
    Row = tuple[Any, ...]

# --- rows -----------------------------------------------------------------------------------------


BINARY: Final = 63
"""The number of the collation of binary strings."""
_INTEGERS: Final[Mapping[int, int]] = {
    tm.TINY: 1, tm.SHORT: 2, tm.INT24: 3, tm.LONG: 4, tm.LONGLONG: 8,
}  # fmt: skip
_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the source's instants have no zone


def rows_of(event: Rows, readers: Sequence[Reader]) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield the old and the new version of each row of an event; None if there is none."""
    data, at, width = event.data, 0, len(readers)
    before = [(place, readers[place]) for place in event.present]
    after = [(place, readers[place]) for place in event.present_after]
    while at < len(data):
        row, at = _row(data, at, before, width)
        if event.kind == "insert":
            yield None, row
        elif event.kind == "delete":
            yield row, None
        else:
            new, at = _row(data, at, after, width)
            yield row, new


def _row(
    data: bytes, at: int, readers: Sequence[tuple[int, Reader]], width: int
) -> tuple[Row, int]:
    row: list[Any] = [UNCHANGED] * width
    size = (len(readers) + 7) // 8
    nulls, at = int.from_bytes(data[at : at + size], "little"), at + size
    for place, read in readers:
        if nulls & 1:
            row[place] = None
        else:
            row[place], at = read(data, at)
        nulls >>= 1
    return tuple(row), at


def reader_of(column: LoggedColumn) -> Reader:
    """Return the reader of a column's values.

    Raises:
        AdapterRefused: the column's type is not supported.
    """
    kind, meta = column.type, column.meta
    if kind in _INTEGERS:
        return _integer(_INTEGERS[kind], is_signed=not column.is_unsigned)
    if kind in _FRACTIONS:
        return _FRACTIONS[kind](meta)
    if kind in {tm.VARCHAR, tm.STRING, tm.BLOB, tm.GEOMETRY, tm.VECTOR, tm.JSON}:
        return _bytes(column)
    simple: Reader | None = {
        tm.FLOAT: _float, tm.DOUBLE: _double, tm.YEAR: _year, tm.DATE: _date,
        tm.DECIMAL: _decimal(meta & 0xFF, meta >> 8),
        tm.ENUM: _enumeration(meta, column.members), tm.SET: _set(meta, column.members),
        tm.BIT: _bits(((meta >> 8) * 8 + (meta & 0xFF) + 7) // 8),
    }.get(kind)  # fmt: skip
    if simple is None:
        raise AdapterRefused(
            f"the column {column.name} is of a type that cannot be read from the log ({kind}): "
            "leave it out, columns"
        )
    return simple


def _integer(size: int, *, is_signed: bool) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        end = at + size
        return int.from_bytes(data[at:end], "little", signed=is_signed), end

    return read


def _float(data: bytes, at: int) -> tuple[Any, int]:
    # The source prints six digits.
    return float(f"{struct.unpack_from('<f', data, at)[0]:.6g}"), at + 4


def _double(data: bytes, at: int) -> tuple[Any, int]:
    return struct.unpack_from("<d", data, at)[0], at + 8


def _year(data: bytes, at: int) -> tuple[Any, int]:
    return 1900 + data[at] if data[at] else 0, at + 1


def _date(data: bytes, at: int) -> tuple[Any, int]:
    number = unsigned(data, at, 3)
    year, month, day = number >> 9, number >> 5 & 15, number & 31
    try:
        return date(year, month, day), at + 3
    except ValueError:
        return f"{year:04}-{month:02}-{day:02}", at + 3


def _fraction(data: bytes, at: int, digits: int) -> tuple[int, int]:
    size = (digits + 1) // 2
    return int.from_bytes(data[at : at + size], "big") * 100 ** (3 - size), at + size


def _datetime(digits: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        number = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        micros, end = _fraction(data, at + 5, digits)
        day, clock = divmod(number, 1 << 17)
        months, day = divmod(day, 32)
        year, month = divmod(months, 13)
        hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
        try:
            return datetime(year, month, day, hour, minute, second, micros), end  # noqa: DTZ001
        except ValueError:
            text = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
            return text + _digits(micros, digits), end

    return read


def _timestamp(digits: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        micros, end = _fraction(data, at + 4, digits)
        if not (seconds or micros):
            return "0000-00-00 00:00:00" + _digits(0, digits), end
        return _EPOCH + timedelta(seconds=seconds, microseconds=micros), end

    return read


def _digits(micros: int, digits: int) -> str:
    return f".{micros:06}"[: digits + 1] if digits else ""


def _time(digits: int) -> Reader:
    size = 3 + (digits + 1) // 2
    zero = 0x800000 << 8 * (size - 3)
    unit = 100 ** (6 - size)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        number = int.from_bytes(data[at : at + size], "big") - zero
        clock, part = divmod(abs(number), 1 << 8 * (size - 3))
        text = f"{clock >> 12:02}:{clock >> 6 & 63:02}:{clock & 63:02}"
        sign = "-" if number < 0 else ""
        return sign + text + _digits(part * unit, digits), at + size

    return read


_FRACTIONS: Final[Mapping[int, Callable[[int], Reader]]] = {
    tm.DATETIME: _datetime, tm.TIMESTAMP: _timestamp, tm.TIME: _time,
}  # fmt: skip


def _decimal(precision: int, scale: int) -> Reader:
    """Read a decimal: nine digits in four bytes, fewer in fewer, the sign in the first bit."""
    whole, part = divmod(max(precision - scale, 0), 9), divmod(scale, 9)
    groups = [whole[1]] * bool(whole[1]) + [9] * whole[0]
    fractions = [9] * part[0] + [part[1]] * bool(part[1])
    size = sum(_DIGIT_BYTES[digits] for digits in groups + fractions)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        raw = data[at : at + size]
        is_negative = not raw[0] & 0x80
        number = int.from_bytes(raw, "big") ^ (1 << 8 * size - 1)
        bytes_ = (number ^ ((1 << 8 * size) - 1) if is_negative else number).to_bytes(size, "big")
        texts, place = [], 0
        for digits in groups + fractions:
            end = place + _DIGIT_BYTES[digits]
            texts.append(f"{int.from_bytes(bytes_[place:end], 'big'):0{digits}}")
            place = end
        before = "".join(texts[: len(groups)]).lstrip("0") or "0"
        after = "".join(texts[len(groups) :])
        text = f"{before}.{after}" if after else before
        return ("-" if is_negative else "") + text, at + size

    return read


def decimal_from(precision: int, scale: int, data: bytes) -> str:
    """Read a decimal outside a row, as in a JSON document."""
    value: str = _decimal(precision, scale)(data, 0)[0]
    return value


def _bits(size: int) -> Reader:
    return lambda data, at: (data[at : at + size], at + size)


def _enumeration(size: int, members: Sequence[str]) -> Reader:
    texts = ("", *members)
    return lambda data, at: (texts[unsigned(data, at, size)], at + size)


def _set(size: int, members: Sequence[str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        number = unsigned(data, at, size)
        chosen = [member for place, member in enumerate(members) if number >> place & 1]
        return ",".join(chosen), at + size

    return read


def _bytes(column: LoggedColumn) -> Reader:
    kind, meta = column.type, column.meta
    size = (1 if meta < 256 else 2) if kind in {tm.VARCHAR, tm.STRING} else meta  # noqa: PLR2004
    padded = meta if kind == tm.STRING and column.charset == BINARY else 0

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + size
        end = start + unsigned(data, at, size)
        return data[start:end].ljust(padded, b"\0"), end

    return read


# --- JSON -----------------------------------------------------------------------------------------


_LITERALS: Final = (None, True, False)
_NUMBERS: Final = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_OBJECTS: Final = frozenset({0, 1})
_LARGE: Final = frozenset({1, 3})
_LITERAL, _STRING = 4, 12
_INLINE: Final = {False: frozenset({4, 5, 6}), True: frozenset({4, 5, 6, 7, 8})}
"""Types whose values are stored inline instead of at an offset, in small and large documents."""
_DATE, _TIMESTAMP, _DATETIME, _TIME, _DECIMAL = 10, 7, 12, 11, 246


def json_from(data: bytes) -> Any:
    """Decode a document.

    Raises:
        ValueError, IndexError: it is malformed.
    """
    return _value(data[0], data, 1) if data else None


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind < _LITERAL:
        return _container(kind, data, at)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], data, at)[0]
    if kind == _STRING:
        size, at = _size(data, at)
        return data[at : at + size].decode()
    size, start = _size(data, at + 1)
    return _opaque(data[at], data[start : start + size])


def _container(kind: int, data: bytes, at: int) -> Any:
    """Decode an object or an array: its offsets are relative to its beginning."""
    is_large = kind in _LARGE
    width = 4 if is_large else 2
    count = unsigned(data, at, width)
    keys = []
    place = at + 2 * width
    if kind in _OBJECTS:
        for _ in range(count):
            start = at + unsigned(data, place, width)
            keys.append(data[start : start + unsigned(data, place + width, 2)].decode())
            place += width + 2
    values = []
    for _ in range(count):
        inner = data[place]
        is_inline = inner in _INLINE[is_large]
        start = place + 1 if is_inline else at + unsigned(data, place + 1, width)
        values.append(_value(inner, data, start))
        place += 1 + width
    return dict(zip(keys, values, strict=True)) if kind in _OBJECTS else values


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Read a size, seven bits in each byte."""
    size = shift = 0
    while True:
        byte, at = data[at], at + 1
        size |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004
            return size, at
        shift += 7


def _opaque(kind: int, data: bytes) -> Any:
    """Decode a value of a type that JSON lacks, as the source prints it."""
    if kind == _DECIMAL:
        return float(decimal_from(data[0], data[1], data[2:]))
    if kind == _TIME:
        return _json_time(int.from_bytes(data, "little", signed=True))
    if kind in {_DATE, _TIMESTAMP, _DATETIME}:
        return _instant(unsigned(data, 0, 8), is_date=kind == _DATE)
    from base64 import b64encode  # noqa: PLC0415 - bytes are rare in JSON

    return f"base64:type{kind}:{b64encode(data).decode()}"


def _instant(number: int, *, is_date: bool) -> str:
    seconds, micros = number >> 24, number & 0xFFFFFF
    day, clock = divmod(seconds, 1 << 17)
    months, day = divmod(day, 32)
    text = f"{months // 13:04}-{months % 13:02}-{day:02}"
    if is_date:
        return text
    return f"{text} {clock >> 12:02}:{clock >> 6 & 63:02}:{clock & 63:02}.{micros:06}"


def _json_time(number: int) -> str:
    clock, micros = divmod(abs(number), 1 << 24)
    hours, rest = clock >> 12, timedelta(minutes=clock >> 6 & 63, seconds=clock & 63)
    minutes, seconds = divmod(rest.seconds, 60)
    return f"{'-' if number < 0 else ''}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"


# --- text -----------------------------------------------------------------------------------------


_MARIADB_CHARSETS: Final = ("utf-8", "utf-8", "utf-16-be", "utf-16-be", "utf-32-be")
_CODECS: Final[Mapping[str, str]] = {
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "utf8mb3": "utf-8", "utf8mb4": "utf-8", "utf8": "utf-8", "ujis": "euc_jp", "eucjpms": "euc_jp",
    "sjis": "shift_jis", "tis620": "tis_620", "koi8r": "koi8_r", "koi8u": "koi8_u",
    "macroman": "mac_roman", "macce": "mac_latin2",
}  # fmt: skip


def decoder_of(column: LoggedColumn, charset: str) -> Callable[[bytes], str]:
    """Return the decoder of a column's text.

    Args:
        column: the column, with the number of its collation.
        charset: its current character set, if the driver does not know that number.

    Raises:
        AdapterRefused: no decoder is known.
    """
    codec = _codec(column, charset)
    return _latin1 if codec == "latin1" else lambda data: data.decode(codec)


def _codec(column: LoggedColumn, charset: str) -> str:
    number = column.charset
    if number >= 2048:  # noqa: PLR2004 - MariaDB's collations by UCA 14
        return _MARIADB_CHARSETS[(number - 2048) >> 8]
    try:
        name = str(charset_by_id(number).name)  # type: ignore[attr-defined]  # of its C base
    except KeyError:
        name = charset or "utf8mb4"
    if name not in _CODECS and not _is_known(name):
        raise AdapterRefused(f"the column {column.name} is text in {name}, which cannot be read")
    return _CODECS.get(name, name)


@cache
def _is_known(codec: str) -> bool:
    try:
        b"".decode(codec)
    except LookupError:
        return False
    return True


_UNASSIGNED: Final = {0xDC00 + byte: byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def _latin1(data: bytes) -> str:
    """Decode these databases' Latin 1: Windows-1252, with its undefined bytes, too."""
    return data.decode("cp1252", "surrogateescape").translate(_UNASSIGNED)
