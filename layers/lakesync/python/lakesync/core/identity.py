"""The identity of a change: the same logical change always has the same id.

SHA-256, in hex, of the RFC 8785 form of ``{clientId, columns, hlc, rowId, table}``, where columns
are ``{column, value}`` objects in their order and the stamp is a decimal string.
Laws I1-I4: ``docs/spec/identity.md``.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.values import CanonicalJson

DELTA_ID_CHARS: Final = 64
"""Length of an identity in hex."""


def delta_id_of(
    client_id: str,
    columns: Iterable[tuple[str, CanonicalJson]],
    hlc: Stamp,
    row_id: str,
    table: str,
) -> str:
    """Return the identity of a change."""
    members = b",".join([_column_prefix(name) + value + b"}" for name, value in columns])
    text = b'{"clientId":%b,"columns":[%b],"hlc":"%d","rowId":%b,"table":%b}' % (
        _quoted(client_id),
        members,
        hlc,
        encode_basestring(row_id).encode(),
        _quoted(table),
    )
    return hashlib.sha256(text).hexdigest()


def id_template(client_id: str, names: Iterable[str], table: str) -> bytes:
    """Return the constant part of the identities of a client's changes to some columns.

    ``template % (*values, stamp, quoted row id)`` is the text that `delta_id_of` hashes; see
    `filled_id`.
    """
    members = b",".join([_column_prefix(name) + b"%b}" for name in names])
    client = _quoted(client_id).replace(b"%", b"%%")
    return b'{"clientId":%b,"columns":[%b],"hlc":"%%d","rowId":%%b,"table":%b}' % (
        client,
        members,
        _quoted(table),
    )


def filled_id(template: bytes, values: Iterable[CanonicalJson], hlc: Stamp, row_id: str) -> str:
    """Get the identity of a change from its template: equal to `delta_id_of`, in half the time."""
    text = template % (*values, hlc, encode_basestring(row_id).encode())
    return hashlib.sha256(text).hexdigest()


@lru_cache(maxsize=4096)
def _quoted(text: str) -> bytes:
    return encode_basestring(text).encode()


@lru_cache(maxsize=4096)
def _column_prefix(name: str) -> bytes:
    return b'{"column":%b,"value":' % encode_basestring(name).encode()
