"""The JSON encoding, as existing LakeSync clients speak it: text ⇄ messages, both directions.

A 64-bit stamp is a decimal string. Values are canonical JSON already, so writing a page splices
them instead of encoding them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Delta, Op, check_client_id
from lakesync.core.messages import PullPage, Push, PushReceipt, RefusedDelta
from lakesync.core.values import canonical, parse
from lakesync.errors import InvalidInput, ValidationFailed
from lakesync.wire.incoming import OP_NAMES, check_count, incoming_delta, incoming_removal, under
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXACT_INT_MAX = 1 << 53
_STAMP_DIGITS_MAX = 19


def decode_push(body: bytes) -> Push:
    """Read ``{clientId, deltas[], lastSeenHlc, atomic?, epoch?}``.

    Raises:
        ValidationFailed: the body is no such object; the message names the field.
    """
    fields = _object(parse(body), "the body")
    deltas = fields.get("deltas")
    if not isinstance(deltas, list):
        raise ValidationFailed("deltas must be a list", field="deltas")
    check_count(len(deltas))
    atomic = fields.get("atomic", False)
    if not isinstance(atomic, bool):
        raise ValidationFailed("atomic must be true or false", field="atomic")
    client_id = check_client_id(_string(fields, "clientId"))
    last_seen = _stamp(fields.get("lastSeenHlc", 0), "lastSeenHlc")
    read: list[tuple[int, Delta]] = []
    unreadable: list[RefusedDelta] = []
    for index, item in enumerate(deltas):
        try:
            read.append((index, decode_delta(item)))
        except InvalidInput as error:
            fault = under(error, f"deltas[{index}]")
            unreadable.append(RefusedDelta(index, fault, _claimed_id(item)))
    epoch = _string(fields, "epoch") if "epoch" in fields else None
    return Push(client_id, tuple(read), last_seen, atomic, tuple(unreadable), epoch)


def decode_delta(item: object) -> Delta:
    """Read one delta.

    Raises:
        InvalidInput: it is malformed; ``field`` names where.
    """
    fields = _object(item, "a delta")
    op = OP_NAMES.get(_string(fields, "op"))
    if op is None:
        raise ValidationFailed("op must be INSERT, UPDATE or DELETE", field="op")
    columns = fields.get("columns", [])
    if not isinstance(columns, list):
        raise ValidationFailed("columns must be a list", field="columns")
    return incoming_delta(
        op,
        _string(fields, "table"),
        _string(fields, "rowId"),
        _string(fields, "clientId"),
        _stamp(fields.get("hlc"), "hlc"),
        tuple([_column(column) for column in columns]),
        _string(fields, "deltaId", ""),
    )


def _column(item: object) -> tuple[str, bytes]:
    fields = _object(item, "a column", "columns")
    name = _string(fields, "column")
    if "value" not in fields:
        raise ValidationFailed("a column needs a value; null is one", field=f"columns.{name[:64]}")
    try:
        return name, canonical(fields["value"])
    except ValidationFailed as error:
        error.field = f"columns.{name[:64]}"
        raise


def _claimed_id(item: object) -> str:
    claimed = item.get("deltaId") if isinstance(item, dict) else None
    if not isinstance(claimed, str):
        return ""
    # What the client named goes back to it, and half a surrogate pair could not.
    return claimed[:64].encode("utf-8", "replace").decode()


def _object(value: object, what: str, field: str | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValidationFailed(f"{what} must be a JSON object", field=field)
    return value


def _string(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValidationFailed(f"{name} must be a string", field=name)
    return value


def _stamp(value: object, field: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value) if len(value) <= _STAMP_DIGITS_MAX else STAMP_MAX + 1
    elif type(value) is int and 0 <= value < _EXACT_INT_MAX:
        number = value
    else:
        raise ValidationFailed(f"{field} must be a stamp: a decimal string", field=field)
    if number > STAMP_MAX:
        raise ValidationFailed(f"{field} must be at most 2^63-1", field=field)
    return number


def stamp_parameter(text: str, field: str) -> int:
    """Read a stamp out of a query parameter.

    Raises:
        ValidationFailed: it is no decimal number up to 2^63-1.
    """
    return _stamp(text, field)


def encode_push(push: Push) -> bytes:
    """Write a push as an existing client would."""
    members = ",".join(_delta_text(delta) for _, delta in push.deltas)
    epoch = "" if push.epoch is None else f',"epoch":{encode_basestring(push.epoch)}'
    return (
        f'{{"clientId":{encode_basestring(push.client_id)},"deltas":[{members}],'
        f'"lastSeenHlc":"{push.last_seen_hlc}","atomic":{json.dumps(push.atomic)}{epoch}}}'
    ).encode()


def encode_receipt(receipt: PushReceipt) -> bytes:
    """Write ``{serverHlc, accepted, deltas: [], results[], serverTimeMs}``.

    ``deltas`` is always empty: existing clients expect the field and read nothing from it.
    """
    results = [
        {
            "index": outcome.index,
            "deltaId": outcome.delta_id,
            "outcome": outcome.kind.value,
            **(_error_fields(outcome.error) if outcome.error else {}),
        }
        for outcome in receipt.outcomes
    ]
    body = {
        "serverHlc": str(receipt.server_hlc),
        "accepted": receipt.accepted,
        "deltas": [],
        "results": results,
        "serverTimeMs": receipt.server_time_ms,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _error_fields(error: Any) -> dict[str, str]:
    fields = {"code": error.code, "error": error.message}
    return fields | ({"field": error.field} if error.field else {})


def encode_page(page: PullPage) -> bytes:
    """Write ``{deltas[], serverHlc, hasMore, epoch?, snapshot?, scope?}``."""
    members = ",".join(_delta_text(delta) for run in page.records for delta in decode_records(run))
    own = {"epoch": page.epoch, "snapshot": page.snapshot, "scope": page.scope}
    more = "".join(f',"{name}":{encode_basestring(value)}' for name, value in own.items() if value)
    has_more = "true" if page.has_more else "false"
    return (
        f'{{"deltas":[{members}],"serverHlc":"{page.cursor}","hasMore":{has_more}{more}}}'
    ).encode()


def decode_page(body: bytes) -> PullPage:
    """Read what `encode_page` wrote.

    Raises:
        ValidationFailed: the body is no page; the message names the field.
    """
    fields = _object(parse(body), "the answer")
    items = fields.get("deltas")
    if not isinstance(items, list):
        raise ValidationFailed("deltas must be a list", field="deltas")
    more = fields.get("hasMore")
    if not isinstance(more, bool):
        raise ValidationFailed("hasMore must be true or false", field="hasMore")
    cursor = _stamp(fields.get("serverHlc"), "serverHlc")
    deltas = [_page_delta(item, index) for index, item in enumerate(items)]
    return PullPage(
        (encode_records(deltas),),
        len(deltas),
        cursor,
        more,
        _string(fields, "epoch", ""),
        _string(fields, "snapshot", ""),
        _string(fields, "scope", ""),
    )


def _page_delta(item: object, index: int) -> Delta:
    try:
        if isinstance(item, dict) and item.get("op") == Op.REMOVE.name:
            row = _string(item, "table"), _string(item, "rowId")
            return incoming_removal(*row, _stamp(item.get("hlc"), "hlc"))
        return decode_delta(item)
    except InvalidInput as error:
        raise under(error, f"deltas[{index}]") from None


def _delta_text(delta: Delta) -> str:
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
