"""Values as existing clients intend them: their SQLite knows no booleans, objects or lists.

A value that does not fit the type of its column is converted if that loses nothing. Otherwise it is
accepted unchanged, unless the gateway is strict.
Law F7: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import fits
from lakesync.core.delta import known_delta
from lakesync.core.values import canonical, parse, recanonical
from lakesync.errors import ValidationFailed
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push
    from lakesync.core.values import CanonicalJson
    from lakesync.ports import Buffer, RowKey

_BOOLEANS: Final = {b"0": b"false", b"1": b"true"}
_JSON_TEXT: Final = (b'"{', b'"[')


def as_meant(buffer: Buffer, gateway: str, config: GatewayConfig, push: Push) -> Push:
    """Return a push with its values as intended.

    Cost: one read unit for each row into which text of an object or a list is written.
    """
    keys = [
        (delta.table, delta.row_id)
        for _, delta in push.deltas
        if not config.appends(delta.table)
        and any(value[:2] in _JSON_TEXT for _, value in delta.columns)
    ]
    stored = buffer.rows(gateway, keys) if keys else {}
    known: dict[RowKey, Mapping[str, CanonicalJson]] = {
        key: {name: write[2] for name, write in decode_row_state(row.state).columns.items()}
        for key, row in stored.items()
    }
    deltas = [
        (index, _delta_as_meant(config, delta, known.get((delta.table, delta.row_id), {})))
        for index, delta in push.deltas
    ]
    return replace(push, deltas=tuple(deltas), typed=config.strict)


def _delta_as_meant(
    config: GatewayConfig, delta: Delta, known: Mapping[str, CanonicalJson]
) -> Delta:
    schema = config.schemas.get(delta.table)
    types = {column.name: column.type for column in schema.columns} if schema else {}
    columns = tuple(
        [
            (name, _value_as_meant(types.get(name), value, known.get(name)))
            for name, value in delta.columns
        ]
    )
    if columns == delta.columns:
        return delta
    op, table, row_id, client_id, hlc, *_ = delta
    return known_delta(op, table, row_id, client_id, hlc, columns)


def _value_as_meant(
    type_name: str | None, value: CanonicalJson, known: CanonicalJson | None
) -> CanonicalJson:
    if type_name == "boolean":
        return _BOOLEANS.get(value, value)
    if type_name == "number" and value[:1] == b'"':
        return _number(value)
    if value[:2] in _JSON_TEXT:
        meant = _nested(value)
        # Elsewhere it is text, unless it equals what the client was sent for an object or a list.
        if type_name == "json" or (meant == known and canonical(meant.decode()) == value):
            return meant
    return value


def _number(text: CanonicalJson) -> CanonicalJson:
    """Return the number that a text spells in its canonical form; any other text unchanged."""
    try:
        is_number = recanonical(text[1:-1]) == text[1:-1] and fits("number", text[1:-1])
    except ValidationFailed:
        return text
    return text[1:-1] if is_number else text


def _nested(text: CanonicalJson) -> CanonicalJson:
    """Return the object or list that a text spells; the text if it spells none."""
    try:
        return canonical(parse(parse(text).encode()))
    except ValidationFailed:
        return text
