"""DynamoDB requests of `lakesync.buffer.upkeep`, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync.buffer import keys
from lakesync.buffer.requests import encode, key, number, text
from lakesync.core.layout import MAIN_LANE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp

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
    return encode({"TableName": table, "IndexName": keys.UNFLUSHED, "Limit": limit, **start})


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
            "Key": key(keys.row_pk(gateway, name, row_id), row_id),
            "ConditionExpression": "c = :seen",
            "ExpressionAttributeValues": {":seen": number(seen)},
        }
    )


def raise_horizon(table: str, gateway: str, to: Stamp) -> bytes:
    """Return the horizon's move, if it stands below."""
    return encode(
        {
            "TableName": table,
            "Key": key(*keys.head_key(gateway, MAIN_LANE)),
            "UpdateExpression": "SET t = :to",
            "ConditionExpression": TRIMMED_BELOW,
            "ExpressionAttributeValues": {":to": number(to)},
        }
    )
