"""DynamoDB requests for heads of lanes, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys, pack
from lakesync.buffer.requests import (
    NEVER_WRITTEN,
    STANDS_AS_SEEN,
    binary,
    encode,
    key,
    number,
    text,
)
from lakesync.core.layout import MAIN_LANE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Lanes
    from lakesync.ports import Head

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
        "Key": key(*keys.head_key(gateway, MAIN_LANE)),
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
            "Key": key(*keys.head_key(gateway, lane)),
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
    values = {":d": binary(pack.pack_config(config)), ":v": number(config.version)}
    condition = NEVER_WRITTEN
    if config.version > 1:
        condition, values[":before"] = VERSION_BEFORE, number(config.version - 1)
    document = {
        "TableName": table,
        "Key": key(keys.config_pk(gateway), keys.CONFIG),
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
