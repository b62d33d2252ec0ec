"""The open WebSockets in a DynamoDB table of their own.

Notifying costs one query, a read unit for about ten connections, and three write units.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync.buffer import connection_items as items
from lakesync.buffer.answers import number, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.keys import check_gateway
from lakesync.buffer.requests import encode
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.upkeep_requests import query_after
from lakesync.ports import Connection, NotifyState

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp

_PAGE_ITEMS: Final = 5_000


class DynamoConnections(TableCalls):
    """`lakesync.ports.Connections` in a DynamoDB table."""

    def add(self, connection: Connection) -> None:
        """Store a connection; a write unit for each KB."""
        item = items.connection_item(connection)
        self._call("PutItem", encode({"TableName": self._table, "Item": item}))

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection; a read unit."""
        item = self._get(check_gateway(gateway), connection_id)
        return items.connection_of(item) if item else None

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection; a write unit."""
        body = {
            "TableName": self._table,
            "Key": items.connection_key(connection.gateway, connection.id),
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
        body = items.count_frames(self._table, connection, window, frames)
        return self._conditionally("UpdateItem", body)

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection; a write unit."""
        item = items.connection_key(gateway, connection_id)
        self._call("DeleteItem", encode({"TableName": self._table, "Key": item}))

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway; a read unit for each 4 KB."""
        pk, after = check_gateway(gateway), ""
        connections: list[Connection] = []
        state = NotifyState()
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            for item in answer["Items"]:
                if text(item, "sk") == items.NOTIFY_SK:
                    state = items.state_of(item)
                else:
                    connections.append(items.connection_of(item))
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
        return [items.connection_of(item) for item in answer["Items"]], json.dumps(
            last
        ) if last else ""

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies; a write unit."""
        return self._conditionally(
            "UpdateItem", items.begin_turn(self._table, gateway, owner, now_ms, until_ms)
        )

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge; a write unit, a read unit if one was left."""
        body = items.leave_commit(self._table, gateway, commit, now_ms)
        if self._conditionally("UpdateItem", body):
            return True
        item = self._get(check_gateway(gateway), items.NOTIFY_SK)
        return (
            "ow" in item and number(item, "u") >= now_ms and items.state_of(item).wanted >= commit
        )

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues; a write unit."""
        body = items.hand_on_turn(self._table, gateway, owner, state)
        self._conditionally("UpdateItem", body)

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn; a write unit."""
        if self._conditionally("UpdateItem", items.end_turn(self._table, gateway, owner, notified)):
            return True
        body = items.note_notified(self._table, gateway, owner, notified)
        # After another process took over the turn, there is nothing to continue.
        return not self._conditionally("UpdateItem", body)
