"""A delta: one client's change to some columns of one row, its values' bytes, and its identity.

A delta is immutable and complete. It is stored, sent and flushed exactly as its client made it, so
that its identity stays valid. The *meaning* of the change is defined in `lakesync.core.merge`.

A column value is JSON: text, number, boolean, null, object or array. Inside LakeSync it always
travels as its *canonical bytes* (RFC 8785, the JSON Canonicalization Scheme). So equality is
equality of bytes, a delta's identity never depends on how a language prints numbers, and no value
is decoded and encoded again on its way. Numbers are IEEE 754 doubles, as in JSON's own
interoperable subset (RFC 7493). An integer that a double cannot carry digit for digit is refused,
not rounded: send it as text.

The same logical change always has the same identity: SHA-256, in hex, of the canonical bytes of
``{clientId, columns, hlc, rowId, table}``, where columns are ``{column, value}`` objects in their
order and the stamp is a decimal string. Some client ids are the gateway's own: nobody else can
write as it, or be taken for it.
Laws I1-I4: ``docs/spec/identity.md``.
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import IntEnum
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from lakesync.core.clock import STAMP_MAX
from lakesync.core.names import check_identifier, check_table_name
from lakesync.errors import DeltaTooLarge, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp

# --- values ---------------------------------------------------------------------------------------


CanonicalJson: TypeAlias = bytes
"""UTF-8 bytes of one JSON value in RFC 8785 form."""

VALUE_DEPTH_MAX: Final = 32
"""Nesting of objects and arrays in one value."""
_EXACT_INT_MAX: Final = (1 << 53) - 1
_PLAIN_INT_BITS_MAX: Final = 70
"""From 1e21 on, just below 2^70, a number is written with an exponent."""
NULL: Final = b"null"

# Forms that are already canonical, which covers nearly all real traffic: text without escapes,
# small integers, plain decimals of at most 15 digits (always exact in a double), words.
_PLAIN = re.compile(
    rb'"[ !#-\[\]-\x7e\x80-\xff]*"'
    rb"|0|-?[1-9][0-9]{0,14}"
    rb"|-?[1-9][0-9]{0,7}\.[0-9]{0,6}[1-9]"
    rb"|-?0\.(?!000000)[0-9]{0,13}[1-9]"
    rb"|true|false|null"
)
_is_plain = _PLAIN.fullmatch


def canonical(value: object) -> CanonicalJson:
    """Return the canonical bytes of a Python value; equal values give equal bytes.

    Raises:
        ValidationFailed: not JSON, not exact as a double, or nested too deeply.
    """
    try:
        # Most values are text.
        return (encode_basestring(value) if value.__class__ is str else _text(value, 0)).encode()
    except UnicodeEncodeError as exc:
        raise ValidationFailed(
            "text holds half of a surrogate pair; send whole characters"
        ) from exc


def utf8_bytes(text: str, field: str) -> int:
    """Return the size of text in UTF-8.

    Raises:
        ValidationFailed: it contains half of a surrogate pair, which UTF-8 cannot express.
    """
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as exc:
        raise ValidationFailed(f"{field} contains half of a surrogate pair", field=field) from exc


def recanonical(raw: bytes) -> CanonicalJson:
    """Check JSON text from outside and give its canonical bytes; canonical input is unchanged.

    Raises:
        ValidationFailed: not valid UTF-8, not JSON, duplicate keys, or as `canonical`.
    """
    if _is_plain(raw) is None:
        return canonical(parse(raw))
    if not raw.isascii():
        _decode(raw)
    return raw


def parse(raw: bytes) -> Any:
    """Return the Python value of JSON text; the inverse of `canonical`.

    Raises:
        ValidationFailed: not valid UTF-8, not JSON, or an object that repeats a key.
    """
    try:
        return _DECODER.decode(_decode(raw))
    except ValidationFailed:
        raise
    except json.JSONDecodeError as exc:
        raise ValidationFailed(f"not JSON: {exc}") from exc
    except RecursionError as exc:
        raise ValidationFailed("not JSON that can be read: it nests too deeply") from exc
    except ValueError as exc:  # Python's limit on the digits of an integer
        raise ValidationFailed("not JSON that can be read: a number has too many digits") from exc


def text_of(value: CanonicalJson) -> str:
    """Return the text of canonical bytes that begin with a quote, as `parse` does."""
    return value[1:-1].decode() if b"\\" not in value else str(parse(value))


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise ValidationFailed("text is not valid UTF-8") from exc


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValidationFailed("an object repeats a key; each key may occur once")
    return unique


def _no_constant(name: str) -> NoReturn:
    raise ValidationFailed(f"{name} is not JSON; send null or text")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _text(value: object, depth: int) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _number(value)
    if depth >= VALUE_DEPTH_MAX:
        raise ValidationFailed(f"a value may nest {VALUE_DEPTH_MAX} levels; this one nests more")
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(item, depth + 1) for item in value)}]"
    if isinstance(value, dict):
        return _object(value, depth)
    raise ValidationFailed(f"a {type(value).__name__} is not JSON; convert it first")


def _object(value: dict[Any, object], depth: int) -> str:
    if not all(isinstance(key, str) for key in value):
        raise ValidationFailed("an object's keys must be text")
    # RFC 8785 § 3.2.3: keys sort by their UTF-16 code units, not by code point.
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    members = (f"{encode_basestring(key)}:{_text(value[key], depth + 1)}" for key in keys)
    return f"{{{','.join(members)}}}"


def _integer(value: int) -> str:
    digits_of = int.__repr__  # a subclass, such as an enum, may have a repr of its own
    if -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
        return digits_of(value)
    if value.bit_length() <= _PLAIN_INT_BITS_MAX:
        digits = digits_of(value)
        if _number(float(value)) == digits:
            return digits
    raise ValidationFailed("an integer beyond 2^53 is not exact as a JSON number; send it as text")


def _number(value: float) -> str:
    """Print a double as ECMAScript does (ECMA-262 § Number::toString), as RFC 8785 requires."""
    if value == 0:
        return "0"
    if value - value != 0:
        raise ValidationFailed("NaN and infinity are not JSON; send null or text")
    # repr gives the same shortest round-trip digits. Only their arrangement can differ, and not for
    # numbers of everyday size. A subclass, such as numpy's float64, may have a repr of its own.
    printed = float.__repr__(value)
    if "e" not in printed:
        return printed.removesuffix(".0")
    mantissa, _, exponent = printed.lstrip("-").partition("e")
    return ("-" if value < 0 else "") + _arrange(mantissa.replace(".", ""), int(exponent) + 1)


def _arrange(digits: str, point: int) -> str:
    """Place the decimal point before ``digits[point]``; notation switches at 1e21 and 1e-7."""
    count = len(digits)
    if count <= point <= 21:  # noqa: PLR2004 - the standard's own bound
        return digits + "0" * (point - count)
    if -6 < point <= 0:  # noqa: PLR2004 - the standard's own bound
        return f"0.{'0' * -point}{digits}"
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{digits[0]}.{digits[1:]}{power}" if count > 1 else digits + power


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
