"""The open WebSockets in a DynamoDB table of their own, and the changes they are notified of.

====================  =============  ===============  =======================================
item                  pk             sk               attributes
====================  =============  ===============  =======================================
connection            gateway        connection id    cl us ex op d sc rl x fw fc
notify state          gateway        ``|notify``      n w pl ow u x
====================  =============  ===============  =======================================

A gateway's connections are one item collection: one query reads them, and how far they were
notified. Notifying costs this query, a read unit for about ten connections, and three write units.
A connection id contains no ``|``. Attributes: ``cl`` client, ``d`` claims, ``ex`` when the token
expires, ``fc`` frames that were counted in the span of time ``fw``, ``n`` notified, ``op`` opened,
``ow`` owner of the turn, ``pl`` the last connection that there was time for, ``rl`` rules, ``sc``
scope, ``u`` until when the turn lasts, ``us`` user, ``w`` wanted, ``x`` when DynamoDB may remove
it.

The changes are read from the stream of the buffer's table: commits, new configurations,
revocations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.item_format import check_gateway
from lakesync.buffer.requests import encode, key, query_after
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.table_calls import TableCalls, number, text
from lakesync.ports import CONNECTION_S_MAX, Connection, NotifyState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.core.clock import Stamp

# --- the store ------------------------------------------------------------------------------------


_PAGE_ITEMS: Final = 5_000


class DynamoConnections(TableCalls):
    """`lakesync.ports.Connections` in a DynamoDB table."""

    def add(self, connection: Connection) -> None:
        """Store a connection; a write unit for each KB."""
        item = connection_item(connection)
        self._call("PutItem", encode({"TableName": self._table, "Item": item}))

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection; a read unit."""
        item = self._get(check_gateway(gateway), connection_id)
        return connection_of(item) if item else None

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection; a write unit."""
        body = {
            "TableName": self._table,
            "Key": connection_key(connection.gateway, connection.id),
            "UpdateExpression": "SET sc = :sc, rl = :rl",
            "ConditionExpression": "attribute_exists(pk)",
            "ExpressionAttributeValues": {
                ":sc": text_of(connection.scope),
                ":rl": text_of(connection.rules),
            },
        }
        self._conditionally("UpdateItem", encode(body))

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames of a connection in a span of time; a write unit."""
        body = count_frames(self._table, connection, window, frames)
        return self._conditionally("UpdateItem", body)

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection; a write unit."""
        item = connection_key(gateway, connection_id)
        self._call("DeleteItem", encode({"TableName": self._table, "Key": item}))

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway; a read unit for each 4 KB."""
        pk, after = check_gateway(gateway), ""
        connections: list[Connection] = []
        state = NotifyState()
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            for item in answer["Items"]:
                if text(item, "sk") == NOTIFY_SK:
                    state = state_of(item)
                else:
                    connections.append(connection_of(item))
            if "LastEvaluatedKey" not in answer:
                return connections, state
            after = text(answer["LastEvaluatedKey"], "sk")

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Return some connections of all gateways; half a read unit for each 4 KB."""
        start = {"ExclusiveStartKey": json.loads(place)} if place else {}
        body = {
            "TableName": self._table,
            "FilterExpression": "attribute_exists(cl)",
            "Limit": _PAGE_ITEMS,
            **start,
        }
        answer = self._read("Scan", encode(body))
        last = answer.get("LastEvaluatedKey")
        return [connection_of(item) for item in answer["Items"]], json.dumps(last) if last else ""

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies; a write unit."""
        return self._conditionally(
            "UpdateItem", begin_turn(self._table, gateway, owner, now_ms, until_ms)
        )

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge; a write unit, a read unit if one was left."""
        body = leave_commit(self._table, gateway, commit, now_ms)
        if self._conditionally("UpdateItem", body):
            return True
        item = self._get(check_gateway(gateway), NOTIFY_SK)
        return "ow" in item and number(item, "u") >= now_ms and state_of(item).wanted >= commit

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues; a write unit."""
        body = hand_on_turn(self._table, gateway, owner, state)
        self._conditionally("UpdateItem", body)

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn; a write unit."""
        if self._conditionally("UpdateItem", end_turn(self._table, gateway, owner, notified)):
            return True
        body = note_notified(self._table, gateway, owner, notified)
        # After another process took over the turn, there is nothing to continue.
        return not self._conditionally("UpdateItem", body)


# --- items and requests ---------------------------------------------------------------------------


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


# --- the stream of the buffer's table -------------------------------------------------------------


@dataclass(slots=True)
class Changes:
    """The changes, by gateway."""

    commits: dict[str, Stamp] = field(default_factory=dict)
    """The last commit of each gateway that committed."""
    configs: set[str] = field(default_factory=set)
    """Gateways with a changed configuration."""
    revocations: list[tuple[str, str, str]] = field(default_factory=list)
    """Each gateway, kind and name."""


def changes_of(records: Iterable[Any]) -> Changes:
    """Read the records of a stream; those that do not concern connections are ignored."""
    changes = Changes()
    for record in records:
        change = record.get("dynamodb", {})
        key, image = change.get("Keys"), change.get("NewImage")
        if not key or not image:
            continue  # a removal is no change
        pk, sk = text(key, "pk"), text(key, "sk")
        parts = pk.split("|")
        if parts[:2] == ["", "revoked"]:
            kind, _, name = sk.partition("|")
            changes.revocations.append((parts[2], kind, name))
        elif parts[0] and parts[1:2] in (["head"], ["heads"]):
            commit = max(changes.commits.get(parts[0], 0), number(image, "l"))
            changes.commits[parts[0]] = commit
        elif parts[0] and parts[1:] == ["config"]:
            changes.configs.add(parts[0])
    return changes
