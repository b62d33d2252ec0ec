"""Decodes MySQL's stored JSON to Python values. MariaDB's JSON is text, and does not need it.

https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html
"""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any, Final

from lakesync.connectors.sql.binlog.numbers import unsigned

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
        from lakesync.connectors.sql.binlog.rows import decimal_from  # noqa: PLC0415 - as rows do

        return float(decimal_from(data[0], data[1], data[2:]))
    if kind == _TIME:
        return _time(int.from_bytes(data, "little", signed=True))
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


def _time(number: int) -> str:
    clock, micros = divmod(abs(number), 1 << 24)
    hours, rest = clock >> 12, timedelta(minutes=clock >> 6 & 63, seconds=clock & 63)
    minutes, seconds = divmod(rest.seconds, 60)
    return f"{'-' if number < 0 else ''}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}"
