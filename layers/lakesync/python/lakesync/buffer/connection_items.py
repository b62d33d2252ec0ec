"""Connections as items of their own table, and the requests that change them.

====================  =============  ===============  =======================================
item                  pk             sk               attributes
====================  =============  ===============  =======================================
connection            gateway        connection id    cl us ex op d sc rl x fw fc
notify state          gateway        ``|notify``      n w pl ow u x
====================  =============  ===============  =======================================

A gateway's connections are one item collection: one query reads them, and how far they were
notified. A connection id contains no ``|``. Attributes: ``cl`` client, ``d`` claims, ``ex`` when
the token expires, ``fc`` frames that were counted in the span of time ``fw``, ``n`` notified,
``op`` opened, ``ow`` owner of the turn, ``pl`` the last connection that there was time for, ``rl``
rules, ``sc`` scope, ``u`` until when the turn lasts, ``us`` user, ``w`` wanted, ``x`` when DynamoDB
may remove it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.answers import number, text
from lakesync.buffer.keys import check_gateway
from lakesync.buffer.requests import encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.ports import CONNECTION_S_MAX, Connection, NotifyState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.clock import Stamp

NOTIFY_SK: Final = "|notify"


class StoredClaims(Mapping[str, Any]):
    """Stored claims, parsed on first access: only one of a group of connections needs them."""

    __slots__ = ("_read", "_text")

    def __init__(self, stored: str) -> None:
        self._text = stored
        self._read: dict[str, Any] | None = None

    def _claims(self) -> dict[str, Any]:
        if self._read is None:
            self._read = json.loads(self._text)
        return self._read

    def __getitem__(self, name: str) -> Any:
        return self._claims()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims())

    def __len__(self) -> int:
        return len(self._claims())


def connection_key(gateway: str, connection_id: str) -> dict[str, Any]:
    """Return a connection's key."""
    return key(check_gateway(gateway), connection_id)


def connection_item(connection: Connection) -> dict[str, Any]:
    """Return the item of a connection."""
    return {
        **connection_key(connection.gateway, connection.id),
        "cl": text_of(connection.client_id),
        "us": text_of(connection.user),
        "ex": {"N": repr(connection.expires_s)},
        "op": number_of(connection.opened_ms),
        "d": text_of(json.dumps(dict(connection.claims), separators=(",", ":"))),
        "sc": text_of(connection.scope),
        "rl": text_of(connection.rules),
        "x": number_of(connection.opened_ms // 1000 + CONNECTION_S_MAX),
    }


def connection_of(item: dict[str, Any]) -> Connection:
    """Read a connection's item."""
    return Connection(
        text(item, "pk"),
        text(item, "sk"),
        text(item, "cl"),
        text(item, "us"),
        float(item["ex"]["N"]),
        number(item, "op"),
        StoredClaims(text(item, "d")),
        text(item, "sc"),
        text(item, "rl"),
        number(item, "fw") if "fw" in item else 0,
        number(item, "fc") if "fc" in item else 0,
    )


def count_frames(table: str, connection: Connection, window: int, frames: int) -> bytes:
    """Return the request that adds to the frames of a connection in a span of time."""
    change, condition = "ADD fc :c", "fw = :w"
    if connection.window != window:
        change = "SET fw = :w, fc = :c"
        condition = "attribute_exists(pk) AND (attribute_not_exists(fw) OR fw < :w)"
    return encode(
        {
            "TableName": table,
            "Key": connection_key(connection.gateway, connection.id),
            "UpdateExpression": change,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": {":w": number_of(window), ":c": number_of(frames)},
        }
    )


def state_of(item: dict[str, Any]) -> NotifyState:
    """Read how far the connections of a gateway were notified."""
    place = text(item, "pl") if "pl" in item else ""
    return NotifyState(_stamp(item, "n"), _stamp(item, "w"), place)


def _stamp(item: dict[str, Any], name: str) -> Stamp:
    return number(item, name) if name in item else 0


def begin_turn(table: str, gateway: str, owner: str, now_ms: int, until_ms: int) -> bytes:
    """Return the request that makes a process the one that notifies, unless another is."""
    return _update(
        table,
        gateway,
        "SET ow = :o, u = :u, x = :x",
        "attribute_not_exists(ow) OR ow = :o OR u < :now",
        {
            ":o": text_of(owner),
            ":u": number_of(until_ms),
            ":x": number_of(until_ms // 1000 + CONNECTION_S_MAX),
            ":now": number_of(now_ms),
        },
    )


def leave_commit(table: str, gateway: str, commit: Stamp, now_ms: int) -> bytes:
    """Return the request that leaves a commit to the process in charge."""
    return _update(
        table,
        gateway,
        "SET w = :w",
        "attribute_exists(ow) AND u >= :now AND (attribute_not_exists(w) OR w < :w)",
        {":w": number_of(commit), ":now": number_of(now_ms)},
    )


def note_notified(table: str, gateway: str, owner: str, notified: Stamp) -> bytes:
    """Return the request that stores how far was notified, whatever was left in the meantime."""
    values = {":n": number_of(notified), ":o": text_of(owner)}
    return _update(table, gateway, "SET n = :n REMOVE pl", "ow = :o", values)


def end_turn(table: str, gateway: str, owner: str, notified: Stamp) -> bytes:
    """Return the request that ends a turn, unless a later commit was left in the meantime."""
    return _update(
        table,
        gateway,
        "SET n = :n REMOVE ow, u, w, pl",
        "ow = :o AND (attribute_not_exists(w) OR w <= :n)",
        {":n": number_of(notified), ":o": text_of(owner)},
    )


def hand_on_turn(table: str, gateway: str, owner: str, state: NotifyState) -> bytes:
    """Get the request that ends a turn whose time ran out, and stores where the next continues."""
    values = {":n": number_of(state.notified), ":o": text_of(owner)}
    change = "SET n = :n REMOVE ow, u, pl"
    if state.place:
        values[":p"] = text_of(state.place)
        change = "SET n = :n, pl = :p REMOVE ow, u"
    return _update(table, gateway, change, "ow = :o", values)


def _update(table: str, gateway: str, change: str, condition: str, values: dict[str, Any]) -> bytes:
    return encode(
        {
            "TableName": table,
            "Key": connection_key(gateway, NOTIFY_SK),
            "UpdateExpression": change,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }
    )
