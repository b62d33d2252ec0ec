"""The JSON encoding, as existing LakeSync clients speak it: text ⇄ messages, both directions.

A 64-bit stamp is a decimal string. Values are canonical JSON already, so writing a page splices
them instead of encoding them.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Delta, Op, check_client_id
from lakesync.core.messages import Progress, Pull, PullPage, Push, PushReceipt, RefusedDelta, Resync
from lakesync.core.values import parse
from lakesync.errors import InvalidInput, ValidationFailed
from lakesync.wire.incoming import check_count, incoming_removal, row_key, under
from lakesync.wire.json_delta import decode_delta, delta_text, object_of, stamp_of, string_of
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

_DELTAS_DEFAULT: Final = 100
JSON_GROWTH_TIMES_MAX: Final = 6
"""The greatest ratio of the JSON of a run of deltas to the run: a control character in an id takes
six characters. The text of real rows is about one and a half times as long."""


def decode_push(body: bytes) -> Push:
    """Read ``{clientId, deltas[], lastSeenHlc, atomic?, epoch?, ownCursor?}``.

    Raises:
        ValidationFailed: the body is not such an object; the message names the field.
    """
    fields = object_of(parse(body), "the body")
    deltas = fields.get("deltas")
    if not isinstance(deltas, list):
        raise ValidationFailed("deltas must be a list", field="deltas")
    check_count(len(deltas))
    atomic, own_cursor = _flag(fields, "atomic"), _flag(fields, "ownCursor")
    client_id = check_client_id(string_of(fields, "clientId"))
    last_seen = stamp_of(fields.get("lastSeenHlc", 0), "lastSeenHlc")
    read: list[tuple[int, Delta]] = []
    unreadable: list[RefusedDelta] = []
    for index, item in enumerate(deltas):
        try:
            read.append((index, decode_delta(item)))
        except InvalidInput as error:
            fault = under(error, f"deltas[{index}]")
            unreadable.append(RefusedDelta(index, fault, _claimed_id(item), _row(item)))
    epoch = string_of(fields, "epoch") if "epoch" in fields else None
    return Push(
        client_id, tuple(read), last_seen, atomic, tuple(unreadable), epoch, own_cursor=own_cursor
    )


def decode_pull(body: bytes) -> Pull:
    """Read a pull: named as in the address, or as the protobuf message names it.

    ``{clientId, since | sinceHlc, limit | maxDeltas, epoch, snapshot, scope, removes, ownCursor,
    fresh, atLeast, quarantined}``, all optional. The client id is empty if it is left out.

    Raises:
        ValidationFailed: the body is not such an object; the message names the field.
    """
    fields = object_of(parse(body), "the body")
    if "source" in fields:
        raise ValidationFailed("name the source in the address: ?source=…", field="source")
    client_id = check_client_id(string_of(fields, "clientId")) if "clientId" in fields else ""
    limit = "maxDeltas" if "maxDeltas" in fields else "limit"
    deltas_max = _count(fields, limit) if limit in fields else _DELTAS_DEFAULT
    if not deltas_max:
        raise ValidationFailed(f"{limit} must be at least 1", field=limit)
    since = "sinceHlc" if "sinceHlc" in fields else "since"
    at_least = stamp_of(fields.get("atLeast", 0), "atLeast")
    return Pull(
        client_id,
        stamp_of(fields.get(since, 0), since),
        deltas_max,
        _text(fields, "epoch"),
        _text(fields, "snapshot"),
        scope=_text(fields, "scope"),
        removes=_flag(fields, "removes"),
        own_cursor=_flag(fields, "ownCursor"),
        at_least=STAMP_MAX if _flag(fields, "fresh") else at_least,
        quarantined=_count(fields, "quarantined") if "quarantined" in fields else None,
    )


def _claimed_id(item: object) -> str:
    claimed = item.get("deltaId") if isinstance(item, dict) else None
    if not isinstance(claimed, str):
        return ""
    # The claimed id is returned to the client, and half a surrogate pair could not be encoded.
    return claimed[:64].encode("utf-8", "replace").decode()


def _row(item: object) -> tuple[str, str] | None:
    fields = item if isinstance(item, dict) else {}
    try:
        return row_key(string_of(fields, "table"), string_of(fields, "rowId"))
    except InvalidInput:
        return None


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise ValidationFailed(f"{name} must be true or false", field=name)
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    return string_of(fields, name) if name in fields else ""


def stamp_parameter(text: str, field: str) -> int:
    """Read a stamp from a query parameter.

    Raises:
        ValidationFailed: it is not a decimal number up to 2^63-1.
    """
    return stamp_of(text, field)


def encode_push(push: Push) -> bytes:
    """Write a push: the fields of existing clients, then those that only our own clients send."""
    members = ",".join(delta_text(delta) for _, delta in push.deltas)
    epoch = "" if push.epoch is None else f',"epoch":{encode_basestring(push.epoch)}'
    own = ',"ownCursor":true' if push.own_cursor else ""
    return (
        f'{{"clientId":{encode_basestring(push.client_id)},"deltas":[{members}],'
        f'"lastSeenHlc":"{push.last_seen_hlc}","atomic":{json.dumps(push.atomic)}{epoch}{own}}}'
    ).encode()


def encode_receipt(receipt: PushReceipt) -> bytes:
    """Write ``{serverHlc, accepted, deltas: [], results[], serverTimeMs, epoch?}``.

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
        **({"epoch": receipt.epoch} if receipt.epoch else {}),
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _error_fields(error: Any) -> dict[str, str]:
    fields = {"code": error.code, "error": error.message}
    return fields | ({"field": error.field} if error.field else {})


def encode_page(page: PullPage) -> bytes:
    """Write ``{deltas[], serverHlc, hasMore}``, and those of our own fields that are not empty."""
    members = ",".join(delta_text(delta) for run in page.records for delta in decode_records(run))
    own = {"epoch": page.epoch, "snapshot": page.snapshot, "scope": page.scope}
    more = "".join(f',"{name}":{encode_basestring(value)}' for name, value in own.items() if value)
    if page.resync is not None:
        more += f',"resync":{json.dumps(_resync_fields(page.resync))}'
    if page.schema_version:
        more += f',"schemaVersion":{page.schema_version}'
    if page.behind_ms:
        more += f',"behindMs":{page.behind_ms}'
    if page.progress is not None:
        more += f',"rowsRead":{page.progress.read},"rowsTotal":{page.progress.total}'
    has_more = "true" if page.has_more else "false"
    return (
        f'{{"deltas":[{members}],"serverHlc":"{page.cursor}","hasMore":{has_more}{more}}}'
    ).encode()


def decode_page(body: bytes) -> PullPage:
    """Read what `encode_page` wrote.

    Raises:
        ValidationFailed: the body is no page; the message names the field.
    """
    fields = object_of(parse(body), "the answer")
    items = fields.get("deltas")
    if not isinstance(items, list):
        raise ValidationFailed("deltas must be a list", field="deltas")
    more = fields.get("hasMore")
    if not isinstance(more, bool):
        raise ValidationFailed("hasMore must be true or false", field="hasMore")
    cursor = stamp_of(fields.get("serverHlc"), "serverHlc")
    deltas = [_page_delta(item, index) for index, item in enumerate(items)]
    progress = Progress(_count(fields, "rowsRead"), _count(fields, "rowsTotal"))
    return PullPage(
        (encode_records(deltas),),
        len(deltas),
        cursor,
        more,
        string_of(fields, "epoch", ""),
        string_of(fields, "snapshot", ""),
        string_of(fields, "scope", ""),
        _resync_of(fields["resync"]) if "resync" in fields else None,
        _count(fields, "schemaVersion"),
        _count(fields, "behindMs"),
        progress=progress if "rowsTotal" in fields else None,
    )


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValidationFailed(f"{name} must be a number from 0 on", field=name)
    return value


def _resync_fields(resync: Resync) -> dict[str, Any]:
    named = {} if resync.named is None else {"named": resync.named}
    horizons = {table: str(stamp) for table, stamp in resync.tombstone_horizons.items()}
    horizon_fields = {"tombstoneHorizons": horizons} if horizons else {}
    omitted = {"omitted": dict(resync.omitted)} if resync.omitted else {}
    return {"tables": resync.tables, **named, **horizon_fields, **omitted}


def _resync_of(item: object) -> Resync:
    fields = object_of(item, "resync")
    named = fields.get("named")
    omitted = object_of(fields.get("omitted", {}), "resync.omitted")
    for names in (fields.get("tables"), named or [], *omitted.values()):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValidationFailed("resync must hold lists of names", field="resync")
    horizons_json = object_of(fields.get("tombstoneHorizons", {}), "resync.tombstoneHorizons")
    horizons = {
        table: stamp_of(at, "resync.tombstoneHorizons") for table, at in horizons_json.items()
    }
    return Resync(
        tuple(fields["tables"]),
        None if named is None else tuple(named),
        horizons,
        {table: tuple(names) for table, names in omitted.items()},
    )


def _page_delta(item: object, index: int) -> Delta:
    try:
        if isinstance(item, dict) and item.get("op") == Op.REMOVE.name:
            row = string_of(item, "table"), string_of(item, "rowId")
            return incoming_removal(*row, stamp_of(item.get("hlc"), "hlc"))
        return decode_delta(item)
    except InvalidInput as error:
        raise under(error, f"deltas[{index}]") from None
