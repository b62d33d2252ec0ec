"""DynamoDB requests as JSON: each is built in one place, and none is parsed again.

The condition of a conditional write is a named constant.

A commit is one ``TransactWriteItems``. This is the only request that is both large and frequent.
Written by templates it costs a fifth of building and encoding nested dictionaries.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.buffer import item_format
from lakesync.core.layout import MAIN_LANE
from lakesync.wire.log_entries import deflate, encode_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Lanes
    from lakesync.ports import Commit, FlushState, Head, LaneCommit, LogEntry, RowKey

NEVER_WRITTEN: Final = "attribute_not_exists(pk)"
STANDS_AS_SEEN: Final = "c = :seen"
FLUSHED_AS_SEEN: Final = "w = :w AND u = :u"


def number(value: int) -> dict[str, str]:
    """Return a number attribute."""
    return {"N": str(value)}


def text(value: str) -> dict[str, str]:
    """Return a text attribute."""
    return {"S": value}


def binary(value: bytes) -> dict[str, str]:
    """Return a binary attribute."""
    return {"B": b64encode(value).decode()}


def key(pk: str, sk: str) -> dict[str, dict[str, str]]:
    """Return an item's key."""
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def encode(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a request."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def register(table: str, gateway: str) -> bytes:
    """Return the registration of a gateway; idempotent."""
    return encode({"TableName": table, "Item": key(item_format.GATEWAYS, gateway)})


def query(table: str, pk: str, between: tuple[str, str], limit: int) -> bytes:
    """Return a consistent read of a partition's items, sort keys within ``between`` inclusive."""
    return encode(
        {
            "TableName": table,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {
                ":pk": text(pk),
                ":low": text(between[0]),
                ":high": text(between[1]),
            },
            "ConsistentRead": True,
            "Limit": limit,
        }
    )


def batch_get(table: str, wanted: Iterable[tuple[str, str]]) -> bytes:
    """Return a consistent read of items by their keys, at most 100."""
    gets = {"Keys": [key(pk, sk) for pk, sk in wanted], "ConsistentRead": True}
    return encode({"RequestItems": {table: gets}})


def transact_get(table: str, wanted: Iterable[tuple[str, str]]) -> bytes:
    """Return a serialisable read of items by their keys, at most 100."""
    gets = [{"Get": {"TableName": table, "Key": key(pk, sk)}} for pk, sk in wanted]
    return encode({"TransactItems": gets})


def get(table: str, pk: str, sk: str, attribute: str = "") -> bytes:
    """Return a consistent read of one item, or of one attribute of it, named by its letter.

    A function may then be permitted to read that attribute alone, if its key is read as well.
    """
    asked = {"TableName": table, "Key": key(pk, sk), "ConsistentRead": True}
    if attribute:
        asked["ProjectionExpression"] = f"pk, sk, {attribute}"
    return encode(asked)


def save_client_state(
    table: str, gateway: str, client_id: str, seen: bytes | None, state: bytes
) -> bytes:
    """Return the change of a client's state, if it is as it was seen."""
    values = {":d": binary(deflate(state)), ":h": binary(sha256(state).digest())}
    if seen is not None:
        values[":s"] = binary(sha256(seen).digest())
    return encode(
        {
            "TableName": table,
            "Key": key(item_format.client_pk(gateway, client_id), client_id),
            "UpdateExpression": "SET d = :d, h = :h",
            "ConditionExpression": NEVER_WRITTEN if seen is None else "h = :s",
            "ExpressionAttributeValues": values,
        }
    )


def save_destinations(table: str, gateway: str, version: int, packed: bytes) -> bytes:
    """Return the write of a list of destinations, if the version before is in force."""
    item = {
        **key(item_format.destinations_pk(gateway), item_format.DESTINATIONS),
        "d": binary(packed),
        "v": number(version),
    }
    condition: dict[str, Any] = {"ConditionExpression": NEVER_WRITTEN}
    if version > 1:
        condition = {
            "ConditionExpression": "v = :before",
            "ExpressionAttributeValues": {":before": number(version - 1)},
        }
    return encode({"TableName": table, "Item": item, **condition})


def save_flush_state(table: str, gateway: str, seen: FlushState, state: FlushState) -> bytes:
    """Return the change of a flush state, if it is as it was seen."""
    first = seen.watermark == seen.until == 0
    return encode(
        {
            "TableName": table,
            "Key": key(item_format.flush_pk(gateway), item_format.FLUSH),
            "UpdateExpression": "SET w = :to_w, u = :to_u",
            "ConditionExpression": (
                f"{NEVER_WRITTEN} OR {FLUSHED_AS_SEEN}" if first else FLUSHED_AS_SEEN
            ),
            "ExpressionAttributeValues": {
                ":w": number(seen.watermark),
                ":u": number(seen.until),
                ":to_w": number(state.watermark),
                ":to_u": number(state.until),
            },
        }
    )


def save_flushed_table(table: str, gateway: str, name: str, last: Stamp) -> bytes:
    """Return the write of a table's last announced commit, if it is above the stored one."""
    return encode(
        {
            "TableName": table,
            "Key": key(item_format.flushed_pk(gateway), name),
            "UpdateExpression": "SET c = :c",
            "ConditionExpression": f"{NEVER_WRITTEN} OR c < :c",
            "ExpressionAttributeValues": {":c": number(last)},
        }
    )


# --- a commit -------------------------------------------------------------------------------------


_NEW = f'"ConditionExpression":"{NEVER_WRITTEN}"'
_SHOW = ',"ReturnValuesOnConditionCheckFailure":"ALL_OLD"'


class Places(NamedTuple):
    """Which items of a transaction are heads, and which are rows, by their places."""

    heads: dict[int, str]
    rows: dict[int, RowKey]


def transact(table: str, commit: Commit) -> tuple[bytes, Places]:
    """Return the transaction of a commit, and what its items are."""
    name = encode_basestring(table)
    items: list[str] = []
    places = Places({}, {})
    for lane, part in commit.lanes.items():
        places.heads[len(items)] = lane
        items.append(_advance_head(name, lane, commit, part))
        if part.chunk:
            items.append(_put_chunk(name, item_format.log_pk(commit.gateway, lane), part.chunk))
    for (shard, client), put in commit.marks.items():
        pk, data = item_format.mark_pk(commit.gateway, shard), item_format.pack_mark(put.mark)
        items.append(_put_state(name, pk, client, data, commit.stamp, put.seen))
    for key, row in commit.rows.items():
        places.rows[len(items)] = key
        pk = item_format.row_pk(commit.gateway, *key)
        items.append(_put_state(name, pk, key[1], row.state, commit.stamp, row.seen, _SHOW))
    body = f'{{"TransactItems":[{",".join(items)}],"ClientRequestToken":"{commit.token}"}}'
    return body.encode(), places


def _advance_head(name: str, lane: str, commit: Commit, part: LaneCommit) -> str:
    pk, sk = item_format.head_key(commit.gateway, lane)
    seen, entry = part.seen, part.entry
    condition = NEVER_WRITTEN if seen is None else STANDS_AS_SEEN
    change = "SET c = :c, l = :c, v = :v, lb = :lb, o = if_not_exists(o, :c)"
    values = (
        f'":c":{{"N":"{commit.stamp}"}},":v":{{"N":"{commit.config_version}"}},'
        f'":lb":{{"N":"{entry.logged_bytes}"}}'
    )
    if seen is not None:
        values += f',":seen":{{"N":"{seen.commit}"}}'
    if epoch := commit.first_epoch(lane, seen):
        change += ", e = :e"
        values += f',":e":{{"S":"{epoch}"}}'
    if part.chunk:
        change += " REMOVE i, x"
    else:
        recent = encode_chunk((*(seen.recent if seen else ()), entry))
        change += ", i = :i REMOVE x"
        values += f',":i":{{"B":"{b64encode(recent).decode()}"}}'
    return (
        f'{{"Update":{{"TableName":{name},'
        f'"Key":{{"pk":{{"S":"{pk}"}},"sk":{{"S":"{sk}"}}}},'
        f'"UpdateExpression":"{change}",'
        f'"ConditionExpression":"{condition}",'
        f'"ExpressionAttributeValues":{{{values}}}'
        f"{_SHOW}}}}}"
    )


def _put_chunk(name: str, pk: str, entries: Sequence[LogEntry]) -> str:
    data = b64encode(encode_chunk(entries)).decode()
    return (
        f'{{"Put":{{"TableName":{name},"Item":{{"pk":{{"S":"{pk}"}},'
        f'"sk":{{"S":"{item_format.stamp_sk(entries[-1].stamp)}"}},"d":{{"B":"{data}"}}}}}}}}'
    )


def _put_state(
    name: str, pk: str, sk: str, data: bytes, stamp: Stamp, seen: Stamp, show: str = ""
) -> str:
    """Put a row state or a mark, if the one it replaces is the one that was merged into."""
    condition = (
        f'"ConditionExpression":"{STANDS_AS_SEEN}",'
        f'"ExpressionAttributeValues":{{":seen":{{"N":"{seen}"}}}}'
        if seen
        else _NEW
    )
    return (
        f'{{"Put":{{"TableName":{name},"Item":{{"pk":{{"S":"{pk}"}},'
        f'"sk":{{"S":{encode_basestring(sk)}}},"c":{{"N":"{stamp}"}},'
        f'"d":{{"B":"{b64encode(data).decode()}"}}}},{condition}{show}}}}}'
    )


# --- heads of lanes -------------------------------------------------------------------------------


LANES_AS_SEEN: Final = "ln = :seen"
LANES_UNCHANGED: Final = "attribute_exists(pk) AND attribute_not_exists(ln)"
VERSION_BEFORE: Final = "v = :before"
NO_VERSION_BEFORE: Final = f"(attribute_not_exists(v) OR {VERSION_BEFORE})"
NOTHING_LOGGED_SINCE: Final = "lb = :lb"
MORE_LOGGED_SINCE: Final = "lb > :lb AND (attribute_not_exists(fb) OR fb <= :lb)"


def raise_head(
    table: str, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head
) -> bytes:
    """Return the raise of an idle head, for the read barrier, if it is as it was read."""
    if seen is None:
        values = {":to": number(to), ":v": number(main.config_version)}
        return _update_head(table, gateway, lane, "SET c = :to, v = :v", NEVER_WRITTEN, values)
    values = {":to": number(to), ":seen": number(seen.commit)}
    return _update_head(table, gateway, lane, "SET c = :to", STANDS_AS_SEEN, values)


def close_lane(table: str, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bytes:
    """Return the closing of a lane, if its head is as it was read."""
    values = {":to": number(to), ":x": number(1)}
    condition = NEVER_WRITTEN
    if seen is not None:
        condition, values = STANDS_AS_SEEN, {**values, ":seen": number(seen.commit)}
    return _update_head(table, gateway, lane, "SET c = :to, x = :x", condition, values)


def without_entries(table: str, gateway: str, lane: str, seen: Head) -> bytes:
    """Return the removal of a head's entries, if it is as it was read; it moves up by one."""
    values = {":to": number(seen.commit + 1), ":seen": number(seen.commit)}
    return _update_head(table, gateway, lane, "SET c = :to REMOVE i", STANDS_AS_SEEN, values)


def empty_head(table: str, gateway: str, lane: str) -> bytes:
    """Return the removal of a head's entries, and of all that lists it as due; its stamps stay."""
    values: dict[str, dict[str, str]] = {":lane": text(lane)}
    return _update_head(table, gateway, lane, "REMOVE i, lb, fb, o", "sk = :lane", values)


def main_head(
    table: str, gateway: str, seen: Head | None, changes: Mapping[str, dict[str, str]]
) -> dict[str, Any]:
    """Return an update of the main lane's head, if its lanes are as they were read.

    Args:
        table: the table.
        gateway: whose.
        seen: the head that was read; None if there is none.
        changes: the new attributes; ``c`` only moves up.
    """
    values = {f":{name}": value for name, value in changes.items()}
    if seen is None:
        condition = NEVER_WRITTEN
    elif before := seen.lanes.to_text():
        condition, values[":seen"] = LANES_AS_SEEN, text(before)
    else:
        condition = LANES_UNCHANGED
    if "c" in changes and seen is not None:
        condition += " AND c < :c"
    return {
        "TableName": table,
        "Key": key(*item_format.head_key(gateway, MAIN_LANE)),
        "UpdateExpression": "SET " + ", ".join(f"{name} = :{name}" for name in changes),
        "ConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def begin_epoch(
    table: str, gateway: str, seen: Head | None, changes: Mapping[str, dict[str, str]]
) -> bytes:
    """Return the update that begins an epoch: neither lanes nor configuration may have changed."""
    update = main_head(table, gateway, seen, changes)
    if seen is not None:
        is_as_seen = VERSION_BEFORE if seen.config_version else NO_VERSION_BEFORE
        update["ConditionExpression"] += f" AND {is_as_seen}"
        update["ExpressionAttributeValues"][":before"] = number(seen.config_version)
    return encode(update)


def note_flushed(
    table: str, gateway: str, lane: str, until: Stamp, logged_bytes: int
) -> tuple[bytes, bytes]:
    """Return two requests: one if nothing was logged since, else one that keeps counting."""
    values = {":lb": number(logged_bytes)}
    return (
        _update_head(table, gateway, lane, "SET fb = :lb REMOVE o", NOTHING_LOGGED_SINCE, values),
        _update_head(
            table,
            gateway,
            lane,
            "SET fb = :lb, o = :until",
            MORE_LOGGED_SINCE,
            values | {":until": number(until)},
        ),
    )


def _update_head(
    table: str,
    gateway: str,
    lane: str,
    change: str,
    condition: str,
    values: Mapping[str, dict[str, str]],
) -> bytes:
    return encode(
        {
            "TableName": table,
            "Key": key(*item_format.head_key(gateway, lane)),
            "UpdateExpression": change,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }
    )


def save_config(
    table: str, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
    epoch: str,
) -> bytes:  # fmt: skip
    """Return the transaction that puts a configuration in force: its item, and the main head."""
    values = {":d": binary(item_format.pack_config(config)), ":v": number(config.version)}
    condition = NEVER_WRITTEN
    if config.version > 1:
        condition, values[":before"] = VERSION_BEFORE, number(config.version - 1)
    document = {
        "TableName": table,
        "Key": key(item_format.config_pk(gateway), item_format.CONFIG),
        "UpdateExpression": "SET d = :d, v = :v",
        "ConditionExpression": condition,
        "ExpressionAttributeValues": values,
    }
    changes = {"c": number(to), "v": number(config.version), **lanes_attribute(lanes)}
    if epoch and not (seen and seen.epoch):
        changes["e"] = text(epoch)
    head = main_head(table, gateway, seen, changes)
    return encode({"TransactItems": [{"Update": document}, {"Update": head}]})


def lanes_attribute(lanes: Lanes) -> dict[str, dict[str, str]]:
    """Return the attribute of lanes; none before they were changed."""
    stored = lanes.to_text()
    return {"ln": text(stored)} if stored else {}


# --- reading and removing many items --------------------------------------------------------------


TRIMMED_BELOW: Final = "attribute_exists(pk) AND (attribute_not_exists(t) OR t < :to)"


def query_after(table: str, pk: str, after: str, limit: int, *, keys_only: bool = False) -> bytes:
    """Return a consistent read of a partition's items behind a sort key; of all, if it is empty."""
    condition, values = "pk = :pk", {":pk": text(pk)}
    if after:
        condition += " AND sk > :after"
        values[":after"] = text(after)
    projection = {"ProjectionExpression": "pk, sk"} if keys_only else {}
    return encode(
        {
            "TableName": table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
            "Limit": limit,
            **projection,
        }
    )


def scan_unflushed(table: str, place: str, limit: int) -> bytes:
    """Return a read of the index of heads with unflushed entries.

    An index is never read consistently.
    """
    start = {"ExclusiveStartKey": json.loads(place)} if place else {}
    return encode({"TableName": table, "IndexName": item_format.UNFLUSHED, "Limit": limit, **start})


def query_keys(table: str, pk: str, between: tuple[str, str], limit: int) -> bytes:
    """Return a consistent read of keys, sort keys within ``between`` inclusive."""
    low, high = between
    return encode(
        {
            "TableName": table,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": {":pk": text(pk), ":low": text(low), ":high": text(high)},
            "ProjectionExpression": "pk, sk",
            "ConsistentRead": True,
            "Limit": limit,
        }
    )


def delete_all(table: str, doomed: Iterable[tuple[str, str]]) -> bytes:
    """Return the deletion of items by their keys, at most 25; some may be left unprocessed."""
    deletes = [{"DeleteRequest": {"Key": key(pk, sk)}} for pk, sk in doomed]
    return encode({"RequestItems": {table: deletes}})


def delete_row(table: str, gateway: str, name: str, row_id: str, seen: Stamp) -> bytes:
    """Return the deletion of a row state, if a commit that was seen wrote it."""
    return encode(
        {
            "TableName": table,
            "Key": key(item_format.row_pk(gateway, name, row_id), row_id),
            "ConditionExpression": "c = :seen",
            "ExpressionAttributeValues": {":seen": number(seen)},
        }
    )


def raise_horizon(table: str, gateway: str, to: Stamp) -> bytes:
    """Return the horizon's move, if it stands below."""
    return encode(
        {
            "TableName": table,
            "Key": key(*item_format.head_key(gateway, MAIN_LANE)),
            "UpdateExpression": "SET t = :to",
            "ConditionExpression": TRIMMED_BELOW,
            "ExpressionAttributeValues": {":to": number(to)},
        }
    )
