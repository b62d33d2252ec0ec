"""The JSON encoding, as existing LakeSync clients speak it: text ⇄ messages, both directions.

A 64-bit stamp is a decimal string. Values are canonical JSON already, so writing a delta or a page
splices them instead of encoding them. What is read of a body is read of a frame's too, which holds
the same: each ``decode_`` has a function behind it that takes the parsed value.
"""

from __future__ import annotations

import json
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Delta, Op, canonical, check_client_id, parse
from lakesync.core.messages import (
    Action,
    ActionAnswers,
    ActionDescription,
    ActionOutcome,
    ActionPush,
    ActionRefused,
    Progress,
    Pull,
    PullPage,
    Push,
    PushReceipt,
    RefusedDelta,
    Resync,
    checked_action,
)
from lakesync.errors import InvalidInput, ValidationFailed
from lakesync.wire.incoming import (
    OP_NAMES,
    check_action_count,
    check_count,
    incoming_delta,
    incoming_removal,
    json_text,
    own_action,
    refused_action,
    row_key,
    under,
)
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# --- one delta, and the fields of messages --------------------------------------------------------


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


# --- pushes and pulls -----------------------------------------------------------------------------


_DELTAS_DEFAULT: Final = 100
JSON_GROWTH_TIMES_MAX: Final = 6
"""The greatest ratio of the JSON of a run of deltas to the run: a control character in an id takes
six characters. The text of real rows is about one and a half times as long."""


def decode_push(body: bytes) -> Push:
    """Read ``{clientId, deltas[], lastSeenHlc, atomic?, epoch?, ownCursor?}``.

    Raises:
        ValidationFailed: the body is not such an object; the message names the field.
    """
    return push_of(parse(body))


def push_of(value: object) -> Push:
    """Read a parsed push; raises as `decode_push`."""
    fields = object_of(value, "the body")
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
    return pull_of(parse(body))


def pull_of(value: object) -> Pull:
    """Read a parsed pull; raises as `decode_pull`."""
    fields = object_of(value, "the body")
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
    """Write ``{deltas[], serverHlc, hasMore}``, and those of our own fields that are not empty.

    A broadcast has ``first`` and ``previous`` too.
    """
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
    if page.previous is not None:
        more += f',"first":"{page.first}","previous":"{page.previous}"'
    has_more = "true" if page.has_more else "false"
    return (
        f'{{"deltas":[{members}],"serverHlc":"{page.cursor}","hasMore":{has_more}{more}}}'
    ).encode()


def decode_page(body: bytes) -> PullPage:
    """Read what `encode_page` wrote.

    Raises:
        ValidationFailed: the body is no page; the message names the field.
    """
    return page_of(parse(body))


def page_of(value: object) -> PullPage:
    """Read a parsed page; raises as `decode_page`."""
    fields = object_of(value, "the answer")
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
        stamp_of(fields.get("first", 0), "first"),
        stamp_of(fields["previous"], "previous") if "previous" in fields else None,
        progress if "rowsTotal" in fields else None,
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


# --- actions --------------------------------------------------------------------------------------


def decode_action_push(body: bytes) -> ActionPush:
    """Read ``{clientId, actions[], epoch?}``.

    Raises:
        ValidationFailed: the body is not such an object; the message names the field.
    """
    return action_push_of(parse(body))


def action_push_of(value: object) -> ActionPush:
    """Read parsed actions; raises as `decode_action_push`."""
    fields = object_of(value, "the body")
    items = fields.get("actions")
    if not isinstance(items, list):
        raise ValidationFailed("actions must be a list", field="actions")
    check_action_count(len(items))
    client_id = check_client_id(string_of(fields, "clientId"))
    actions = tuple(_read_action(item, client_id) for item in items)
    return ActionPush(client_id, actions, string_of(fields, "epoch", ""))


def _read_action(item: object, client_id: str) -> Action | ActionRefused:
    try:
        fields = object_of(item, "an action")
        action = Action(
            string_of(fields, "actionId"),
            string_of(fields, "clientId", client_id),
            stamp_of(fields.get("hlc", 0), "hlc"),
            string_of(fields, "connector"),
            string_of(fields, "actionType"),
            fields.get("params", {}),
            string_of(fields, "idempotencyKey", ""),
        )
        return own_action(checked_action(action), client_id)
    except InvalidInput as error:
        claimed = item.get("actionId") if isinstance(item, dict) else ""
        return refused_action(claimed if isinstance(claimed, str) else "", error)


def encode_action_push(push: ActionPush) -> bytes:
    """Write actions as `decode_push` reads them."""
    actions = [_action_json(action) for action in push.actions if isinstance(action, Action)]
    own = {"epoch": push.epoch} if push.epoch else {}
    return json_text({"clientId": push.client_id, "actions": actions, **own})


def _action_json(action: Action) -> dict[str, Any]:
    fields = {
        "actionId": action.action_id,
        "clientId": action.client_id,
        "hlc": str(action.hlc),
        "connector": action.connector,
        "actionType": action.action_type,
        "params": action.params,
    }
    return fields | ({"idempotencyKey": action.idempotency_key} if action.idempotency_key else {})


def encode_answers(answers: ActionAnswers) -> bytes:
    """Write ``{results[], serverHlc}``."""
    results = [outcome_fields(outcome) for outcome in answers.results]
    return json_text({"results": results, "serverHlc": str(answers.server_hlc)})


def outcome_fields(outcome: ActionOutcome) -> dict[str, Any]:
    """Return an outcome as JSON values."""
    if outcome.is_done:
        return {
            "actionId": outcome.action_id,
            "data": outcome.data,
            "serverHlc": str(outcome.server_hlc),
        }
    return {
        "actionId": outcome.action_id,
        "code": outcome.code,
        "message": outcome.message,
        "retryable": outcome.retryable,
    }


def decode_answers(body: bytes) -> ActionAnswers:
    """Read what `encode_answers` wrote.

    Raises:
        ValidationFailed: the body is not such an answer; the message names the field.
    """
    fields = object_of(parse(body), "the answer")
    results = fields.get("results")
    if not isinstance(results, list):
        raise ValidationFailed("results must be a list", field="results")
    read = tuple(outcome_of(object_of(item, "a result")) for item in results)
    return ActionAnswers(read, stamp_of(fields.get("serverHlc"), "serverHlc"))


def outcome_of(fields: Mapping[str, Any]) -> ActionOutcome:
    """Read an outcome from JSON values.

    Raises:
        ValidationFailed: a field is malformed.
    """
    action_id = string_of(fields, "actionId")
    if "code" not in fields:
        data = object_of(fields.get("data"), "data", "data")
        return ActionOutcome(action_id, data, stamp_of(fields.get("serverHlc"), "serverHlc"))
    code, message = string_of(fields, "code"), string_of(fields, "message")
    return ActionOutcome(
        action_id, code=code, message=message, retryable=fields.get("retryable") is True
    )


def encode_discovery(connectors: Mapping[str, Sequence[ActionDescription]]) -> bytes:
    """Write ``{connectors: {name: [{actionType, description, paramsSchema}]}}``."""
    listed = {
        name: [
            {
                "actionType": each.action_type,
                "description": each.description,
                "paramsSchema": each.params_schema,
            }
            for each in actions
        ]
        for name, actions in connectors.items()
    }
    return json_text({"connectors": listed})


def decode_discovery(body: bytes) -> dict[str, list[ActionDescription]]:
    """Read what `encode_discovery` wrote.

    Raises:
        ValidationFailed: the body is malformed.
    """
    listed = object_of(object_of(parse(body), "the answer").get("connectors"), "connectors")
    return {
        name: [
            ActionDescription(
                string_of(each, "actionType"),
                string_of(each, "description", ""),
                object_of(each.get("paramsSchema", {}), "paramsSchema"),
            )
            for each in actions
        ]
        for name, actions in listed.items()
    }
