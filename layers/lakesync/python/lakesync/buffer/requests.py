"""DynamoDB requests as JSON: each is built in one place, and none is parsed again.

The condition of a conditional write is a named constant.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys
from lakesync.wire.log_chunk import deflate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.ports import FlushState

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
    return encode({"TableName": table, "Item": key(keys.GATEWAYS, gateway)})


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
            "Key": key(keys.client_pk(gateway, client_id), client_id),
            "UpdateExpression": "SET d = :d, h = :h",
            "ConditionExpression": NEVER_WRITTEN if seen is None else "h = :s",
            "ExpressionAttributeValues": values,
        }
    )


def save_destinations(table: str, gateway: str, version: int, packed: bytes) -> bytes:
    """Return the write of a list of destinations, if the version before is in force."""
    item = {
        **key(keys.destinations_pk(gateway), keys.DESTINATIONS),
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
            "Key": key(keys.flush_pk(gateway), keys.FLUSH),
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
            "Key": key(keys.flushed_pk(gateway), name),
            "UpdateExpression": "SET c = :c",
            "ConditionExpression": f"{NEVER_WRITTEN} OR c < :c",
            "ExpressionAttributeValues": {":c": number(last)},
        }
    )
