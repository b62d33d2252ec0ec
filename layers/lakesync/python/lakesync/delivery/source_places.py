"""How far a client has read the tables of a source: an opaque text, which it hands back.

Its length is bounded, as it is part of a request's address: a table is a digest of its name.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.database import ORDINAL_END
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import ROW_ID_BYTES_MAX
from lakesync.errors import CursorExpired, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destination

TABLES_MAX: Final = 150
"""Tables of a source: the progress of each is in every request, and API Gateway allows 10 KB."""
PLACES_CHARS_MAX: Final = 6_000
"""Length of the text: `TABLES_MAX` tables, with a row id in one of them."""
_DIGEST_BYTES: Final = 8
_SOURCE: Final = 6
_TABLE: Final = struct.Struct(">8s4sQIH")
_NOT_OURS: Final = "snapshot must be empty, begin, or that of the page before"


class TableKey(NamedTuple):
    """A table, and what decides on its rows for the client."""

    table: bytes
    scope: bytes


class TablePlace(NamedTuple):
    """How far a table was read: its rows up to one of them, or its history."""

    commit: Stamp
    """The commit reached in its history; while rows are read, the mark that they include at least.
    """
    ordinal: int = ORDINAL_END
    row_id: str | None = None
    """The last row that was read; None once all are."""


def table_key(table: str, digest: str) -> TableKey:
    """Return the key of a table, by the digest of the scope that decides its rows."""
    return TableKey(_digest(table)[:_DIGEST_BYTES], _digest(digest)[:4])


def places_text(source: Destination, places: Mapping[TableKey, TablePlace]) -> str:
    """Return the text that a client hands for its next page."""
    parts = [_source(source)]
    for key, place in places.items():
        row = b"" if place.row_id is None else place.row_id.encode()
        size = 0 if place.row_id is None else len(row) + 1
        parts += [_TABLE.pack(*key, place.commit, place.ordinal + 1, size), row]
    return base64.urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")


def places_of(source: Destination, text: str) -> dict[TableKey, TablePlace]:
    """Read what `places_text` gave.

    Raises:
        ValidationFailed: it is malformed.
        CursorExpired: its source was declared again since.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        named, places = data[:_SOURCE], _read(data[_SOURCE:])
    except (ValueError, struct.error) as exc:
        raise ValidationFailed(_NOT_OURS, field="snapshot") from exc
    if named != _source(source):
        raise CursorExpired(
            f"the source {source.name} is not the one that this page came from; begin again, "
            "without a snapshot",
            field="snapshot",
        )
    return places


def _read(data: bytes) -> dict[TableKey, TablePlace]:
    places: dict[TableKey, TablePlace] = {}
    at = 0
    while at < len(data):
        table, scope, commit, ordinal, size = _TABLE.unpack_from(data, at)
        at += _TABLE.size
        row = None if not size else data[at : at + size - 1].decode()
        at += max(size - 1, 0)
        if commit > STAMP_MAX or at > len(data) or size > ROW_ID_BYTES_MAX + 1:
            raise ValueError("no place of ours")
        places[TableKey(table, scope)] = TablePlace(commit, ordinal - 1, row)
    return places


def _source(source: Destination) -> bytes:
    """Distinguish declarations: another one of the same name contains other rows."""
    return _digest(f"{source.name}|{source.declared_ms}")[:_SOURCE]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
