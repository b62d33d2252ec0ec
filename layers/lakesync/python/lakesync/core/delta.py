"""A delta: one client's change to some columns of one row, at one stamp, and its identity.

A delta is immutable and complete. It is stored, sent and flushed exactly as its client made it, so
that its identity stays valid. The *meaning* of the change is defined in `lakesync.core.merge`.

The same logical change always has the same identity: SHA-256, in hex, of the RFC 8785 form of
``{clientId, columns, hlc, rowId, table}``, where columns are ``{column, value}`` objects in their
order and the stamp is a decimal string. Some client ids are the gateway's own: nobody else can
write as it, or be taken for it.
Laws I1-I4: ``docs/spec/identity.md``.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.clock import STAMP_MAX
from lakesync.core.names import check_identifier, check_table_name
from lakesync.core.values import canonical, parse, utf8_bytes
from lakesync.errors import DeltaTooLarge, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.values import CanonicalJson

# --- identity -------------------------------------------------------------------------------------


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


CLIENT_ID_BYTES_MAX: Final = 128
"""Length of a client id; every column's register contains one."""
ROW_ID_BYTES_MAX: Final = 512
"""Length of a row id. With the table's name it is part of a key, and DynamoDB allows 1,024 bytes
there."""
COLUMNS_MAX: Final = 500
"""Columns of one delta, of one row, and of one schema."""
DELTA_BYTES_MAX: Final = 256 * 1024
"""The values of one delta together, in canonical form. They must fit into one log entry with room
to spare, and a DynamoDB item holds 400 KB."""

_SHAPES_REMEMBERED: Final = 256
"""Sets of columns whose check is cached; most deltas use the same few sets."""


class Op(IntEnum):
    """What a delta does to its row; the numbers are the wire's."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    REMOVE = 4
    """The row is no longer visible to its reader. Only the gateway sends it, and it is not a
    change."""


CHANGES: Final = (Op.INSERT, Op.UPDATE, Op.DELETE)
"""Operations that a client may push."""
GATEWAY_CLIENT: Final = "_"
"""The client id of deltas that the gateway itself makes."""

Columns: TypeAlias = "tuple[tuple[str, CanonicalJson], ...]"


class Delta(NamedTuple):
    """One change of one row. Made by `make_delta`, or decoded from the wire; valid either way."""

    op: Op
    table: str
    row_id: str
    client_id: str
    hlc: Stamp
    columns: Columns
    """Column names with the canonical bytes of their values, in the client's order."""
    delta_id: str
    """SHA-256 in hex; see `lakesync.core.delta`."""

    @property
    def values(self) -> dict[str, Any]:
        """The columns with their values as Python objects: what an app reads."""
        return {name: parse(value) for name, value in self.columns}


def make_delta(
    op: Op,
    table: str,
    row_id: str,
    columns: Mapping[str, object] | None = None,
    *,
    client_id: str,
    hlc: Stamp,
) -> Delta:
    """Make a valid delta from Python values.

    Raises:
        ValidationFailed: a name, id or value is malformed; the message names it.
    """
    given = columns.items() if columns else ()
    encoded = tuple([(name, canonical(value)) for name, value in given])
    return checked_delta(op, table, row_id, client_id, hlc, encoded)


def checked_delta(
    op: Op, table: str, row_id: str, client_id: str, hlc: Stamp, columns: Columns
) -> Delta:
    """Make a delta from canonical columns, and validate it.

    Raises:
        ValidationFailed: a name or id is malformed, a column repeats, a delete carries columns.
        DeltaTooLarge: the delta is over `DELTA_BYTES_MAX` or `COLUMNS_MAX`.
    """
    check_table_name(table, "table")
    check_row_id(row_id)
    check_client_id(client_id)
    check_stamp(hlc)
    names = tuple([name for name, _ in columns])
    check_columns(op, names)
    values = [value for _, value in columns]
    check_size(sum(map(len, values)))
    delta_id = filled_id(_id_template(client_id, names, table), values, hlc, row_id)
    return Delta(op, table, row_id, client_id, hlc, columns, delta_id)


def known_delta(
    op: Op, table: str, row_id: str, client_id: str, hlc: Stamp, columns: Columns
) -> Delta:
    """Make a delta out of one that was accepted before, with other parts where it is changed.

    Limits are not checked: they apply to new deltas.
    """
    delta_id = delta_id_of(client_id, columns, hlc, row_id, table)
    return Delta(op, table, row_id, client_id, hlc, columns, delta_id)


def removal(table: str, row_id: str, at: Stamp) -> Delta:
    """Return the delta that hides a row from a client, at the commit that made it invisible."""
    return Delta(Op.REMOVE, table, row_id, GATEWAY_CLIENT, at, (), "")


@lru_cache(maxsize=1024)
def check_client_id(client_id: str) -> str:
    """Return the client id if it is text of 1 to `CLIENT_ID_BYTES_MAX` bytes.

    Raises:
        ValidationFailed: it is not.
    """
    return _check_id(client_id, CLIENT_ID_BYTES_MAX, "clientId")


def check_row_id(row_id: str) -> str:
    """Return the row id if it is text of 1 to `ROW_ID_BYTES_MAX` bytes.

    Raises:
        ValidationFailed: it is not.
    """
    return _check_id(row_id, ROW_ID_BYTES_MAX, "rowId")


def _check_id(text: str, bytes_max: int, field: str) -> str:
    size = utf8_bytes(text, field)
    if not 0 < size <= bytes_max:
        raise ValidationFailed(f"an id must be 1 to {bytes_max} bytes; got {size}", field=field)
    return text


def check_stamp(hlc: Stamp) -> None:
    """Check that a stamp is valid for a change.

    Raises:
        ValidationFailed: it is not.
    """
    if not 0 < hlc <= STAMP_MAX:
        raise ValidationFailed("the stamp must lie between 1 and 2^63-1", field="hlc")


def check_columns(op: Op, names: tuple[str, ...]) -> None:
    """Check which columns a delta has.

    Raises:
        ValidationFailed: a name is malformed, a column repeats, a delete carries columns.
        DeltaTooLarge: more than `COLUMNS_MAX`.
    """
    if op is not Op.DELETE:
        _check_names(names)
    elif names:
        raise ValidationFailed("a DELETE carries no columns", field="columns")


def check_size(size: int) -> None:
    """Check the total size of a delta's values.

    Raises:
        DeltaTooLarge: more than `DELTA_BYTES_MAX`.
    """
    if size > DELTA_BYTES_MAX:
        raise DeltaTooLarge(
            f"a delta's values may hold {DELTA_BYTES_MAX} bytes; these hold {size}", field="columns"
        )


_id_template = lru_cache(maxsize=_SHAPES_REMEMBERED)(id_template)


@lru_cache(maxsize=_SHAPES_REMEMBERED)
def _check_names(names: tuple[str, ...]) -> None:
    """Check the names of a delta's columns."""
    if len(names) > COLUMNS_MAX:
        raise DeltaTooLarge(f"a delta may carry {COLUMNS_MAX} columns", field="columns")
    for name in names:
        check_identifier(name, "columns.column")
    if len({name.lower() for name in names}) != len(names):
        raise ValidationFailed(
            "a column occurs twice in one delta; names that differ in case alone are one name",
            field="columns",
        )


def sorted_ids(deltas: Iterable[Delta]) -> list[str]:
    """Return the ids of deltas in a stable order, for comparing sets of changes."""
    return sorted(delta.delta_id for delta in deltas)


# --- client ids of the gateway's own --------------------------------------------------------------


CONNECTOR_CLIENTS: Final = "connector:"
"""How the client ids of connectors and polled flows begin; the name follows."""

CONNECTORS_USER: Final = "|connectors"
"""The user to whom connectors' clients belong. No token is of it."""


def check_own_client_id(client_id: str) -> str:
    """Return the client id if an app or a user may have it.

    Raises:
        ValidationFailed: it is no client id, or one under which the gateway or a connector writes.
    """
    check_client_id(client_id)
    if client_id == GATEWAY_CLIENT or client_id.startswith(CONNECTOR_CLIENTS):
        raise ValidationFailed(
            f"{client_id[:80]!r} is no client id of an app: {GATEWAY_CLIENT} is the gateway's own, "
            f"and what begins with {CONNECTOR_CLIENTS} its connectors'; choose another",
            field="clientId",
        )
    return client_id
