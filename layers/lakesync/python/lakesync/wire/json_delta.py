"""Reads and writes one delta in JSON, and the fields of messages.

Values are canonical JSON already, so writing a delta splices them instead of encoding them.
"""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from lakesync.core.clock import STAMP_MAX
from lakesync.core.values import canonical
from lakesync.errors import ValidationFailed
from lakesync.wire.incoming import OP_NAMES, incoming_delta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.delta import Delta

_EXACT_INT_MAX = 1 << 53
_STAMP_DIGITS_MAX = 19


def decode_delta(item: object) -> Delta:
    """Read one delta.

    Raises:
        InvalidInput: it is malformed; ``field`` names where.
    """
    fields = object_of(item, "a delta")
    op = OP_NAMES.get(string_of(fields, "op"))
    if op is None:
        raise ValidationFailed("op must be INSERT, UPDATE or DELETE", field="op")
    columns = fields.get("columns", [])
    if not isinstance(columns, list):
        raise ValidationFailed("columns must be a list", field="columns")
    return incoming_delta(
        op,
        string_of(fields, "table"),
        string_of(fields, "rowId"),
        string_of(fields, "clientId"),
        stamp_of(fields.get("hlc"), "hlc"),
        tuple([_column(column) for column in columns]),
        string_of(fields, "deltaId", ""),
    )


def _column(item: object) -> tuple[str, bytes]:
    fields = object_of(item, "a column", "columns")
    name = string_of(fields, "column")
    if "value" not in fields:
        raise ValidationFailed("a column needs a value; null is one", field=f"columns.{name[:64]}")
    try:
        return name, canonical(fields["value"])
    except ValidationFailed as error:
        error.field = f"columns.{name[:64]}"
        raise


def object_of(value: object, what: str, field: str | None = None) -> Mapping[str, Any]:
    """Return the members of an object.

    Raises:
        ValidationFailed: it is not an object.
    """
    if not isinstance(value, dict):
        raise ValidationFailed(f"{what} must be a JSON object", field=field)
    return value


def string_of(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a member that is text.

    Raises:
        ValidationFailed: it is missing, without a default, or of another kind.
    """
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValidationFailed(f"{name} must be a string", field=name)
    return value


def stamp_of(value: object, field: str) -> int:
    """Return a stamp: decimal digits, or a number where that is exact.

    Raises:
        ValidationFailed: it is not a stamp, or beyond 2^63-1.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value) if len(value) <= _STAMP_DIGITS_MAX else STAMP_MAX + 1
    elif type(value) is int and 0 <= value < _EXACT_INT_MAX:
        number = value
    else:
        raise ValidationFailed(f"{field} must be a stamp: a decimal string", field=field)
    if number > STAMP_MAX:
        raise ValidationFailed(f"{field} must be at most 2^63-1", field=field)
    return number


def delta_text(delta: Delta) -> str:
    """Write one delta as `decode_delta` reads it."""
    columns = ",".join(
        [f"{_column_prefix(name)}{value.decode()}}}" for name, value in delta.columns]
    )
    return (
        f'{{"op":"{delta.op.name}","table":"{delta.table}",'
        f'"rowId":{encode_basestring(delta.row_id)},'
        f'"clientId":{_quoted(delta.client_id)},"columns":[{columns}],'
        f'"hlc":"{delta.hlc}","deltaId":"{delta.delta_id}"}}'
    )


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return encode_basestring(text)


@lru_cache(maxsize=4096)
def _column_prefix(name: str) -> str:
    return f'{{"column":{encode_basestring(name)},"value":'
