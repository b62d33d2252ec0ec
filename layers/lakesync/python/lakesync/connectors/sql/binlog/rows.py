"""Decodes rows of the binary log to the values that reading the table gives.

A reader takes the data and a place in it, and returns a value and the place after it. Numbers are
Python's, decimals and times of day their text, days and instants Python's or, where these have none
(a day 0), the text that the source gives. Text and JSON stay bytes: only wanted columns are
decoded.
"""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.sql.binlog import table_map as tm
from lakesync.connectors.sql.binlog.numbers import unsigned
from lakesync.connectors.sql.capture.pgoutput import UNCHANGED
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.connectors.sql.binlog.events import Rows
    from lakesync.connectors.sql.binlog.table_map import LoggedColumn

    Reader = Callable[[bytes, int], tuple[Any, int]]
    Row = tuple[Any, ...]

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
    """Read a fraction of a second, in microseconds."""
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
