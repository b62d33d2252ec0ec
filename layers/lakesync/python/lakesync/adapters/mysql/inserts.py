"""Inserts of many rows, as text: formatting values is half of a row's cost.

PyMySQL looks at a value three times, and formats each row separately. This module writes values in
PyMySQL's own forms, for the session's SQL mode, in which a backslash escapes.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pymysql.converters import escape_datetime, escape_float, escape_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one insert: a quarter of the smallest default of ``max_allowed_packet``."""
_LITERALS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: lambda value: f"'{escape_string(value)}'",
    bytes: lambda value: f"X'{value.hex()}'",
    int: int.__repr__,
    float: escape_float,
    bool: lambda value: "1" if value else "0",
    type(None): lambda _: "NULL",
    datetime: escape_datetime,
}


def inserts(
    opening: str,
    rows: Iterable[Sequence[object]],
    escape: Callable[[object], str],
    ending: str = "",
    bytes_max: int = STATEMENT_BYTES_MAX,
) -> Iterator[bytes]:
    """Yield the statements that insert rows, each as large as allowed, or of one row.

    Args:
        opening: the text before the rows, ``INSERT INTO … VALUES``.
        rows: may be lazy.
        escape: the connection's, for values of other types.
        ending: the text after the rows.
        bytes_max: bytes of a statement.
    """
    front, back = f"{opening} ".encode(), ending.encode()
    known = _LITERALS.get
    parts: list[bytes] = []
    size = 0
    for row in rows:
        literals = [(known(value.__class__) or escape)(value) for value in row]
        part = f"({','.join(literals)})".encode()
        if parts and len(front) + size + len(part) + len(back) > bytes_max:
            yield front + b",".join(parts) + back
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield front + b",".join(parts) + back
