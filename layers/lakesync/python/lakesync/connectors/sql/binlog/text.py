"""Decodes text of the binary log: bytes in its column's character set."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from pymysql.charset import charset_by_id

from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.sql.binlog.table_map import LoggedColumn

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
