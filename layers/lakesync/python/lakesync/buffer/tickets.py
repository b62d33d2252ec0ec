"""Tickets that open one WebSocket each, beside the connections in their DynamoDB table.

====================  ====================  ===============  ====================================
item                  pk                    sk               attributes
====================  ====================  ===============  ====================================
ticket                ``|ticket|<digest>``  ``|ticket``      d u x
====================  ====================  ===============  ====================================

Attributes: ``d`` claims, ``u`` until when it is good, ``x`` when DynamoDB may remove it. It has no
client, so that no reader of connections takes it for one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.answers import text
from lakesync.buffer.caller import Refusal
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_TICKET_SK: Final = "|ticket"


class DynamoTickets(TableCalls):
    """`lakesync.ports.Tickets` in the connections' DynamoDB table."""

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        """Store what a ticket is good for; a write unit for each KB of claims."""
        item = {
            **_key(digest),
            "d": text_of(json.dumps(dict(claims), separators=(",", ":"))),
            "u": number_of(until_ms),
            "x": number_of(until_ms // 1000 + 1),
        }
        self._call("PutItem", encode({"TableName": self._table, "Item": item}))

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        """Get a ticket's claims, to one caller only; a write unit, whether it is known or not."""
        body = {
            "TableName": self._table,
            "Key": _key(digest),
            # A missing ticket has no ``u``, so the condition fails for it too.
            "ConditionExpression": "u >= :now",
            "ExpressionAttributeValues": {":now": number_of(now_ms)},
            "ReturnValues": "ALL_OLD",
        }
        try:
            item = self._call("DeleteItem", encode(body))["Attributes"]
        except Refusal:
            return None
        claims: dict[str, Any] = json.loads(text(item, "d"))
        return claims


def _key(digest: str) -> dict[str, Any]:
    return key(f"|ticket|{digest}", _TICKET_SK)
