"""The connectors of gateways: one item for each, in the buffer's table.

A poll without news costs three write units: the lease, its beginning and its end.
"""

from __future__ import annotations

from typing import Any, Final

from lakesync.buffer import keys
from lakesync.buffer.answers import data, number, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import NEVER_WRITTEN, binary, encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.upkeep_requests import query_after
from lakesync.ports import StoredConnector

_PAGE_ITEMS: Final = 100
_AS_SEEN: Final = "d = :seen"
_IS_FREE: Final = "attribute_exists(pk) AND (lu <= :now OR le = :mine)"
_IS_MINE: Final = "le = :mine"


class DynamoConnectors(TableCalls):
    """`lakesync.ports.ConnectorStore` in the buffer's DynamoDB table."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors; a read unit for about five."""
        pk, after = keys.connector_pk(gateway), ""
        items: list[dict[str, Any]] = []
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return [_connector(item) for item in items]
            after = text(answer["LastEvaluatedKey"], "sk")

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Return one; a read unit."""
        item = self._get(keys.connector_pk(gateway), name)
        return _connector(item) if item else None

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register one; its leases begin at the time, so no lease of a removed one is valid."""
        values = {":d": binary(definition), ":le": number_of(now_ms), ":zero": number_of(0)}
        change = "SET d = :d, le = :le, lu = :zero"
        return self._update(gateway, name, change, NEVER_WRITTEN, values) is not None

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; a write unit."""
        values = {":d": binary(definition), ":seen": binary(seen)}
        return self._update(gateway, name, "SET d = :d", _AS_SEEN, values) is not None

    def remove(self, gateway: str, name: str) -> None:
        """Remove one; a write unit."""
        item = key(keys.connector_pk(gateway), name)
        self._call("DeleteItem", encode({"TableName": self._table, "Key": item}))

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll one; a write unit."""
        values = {
            ":now": number_of(now_ms),
            ":until": number_of(until_ms),
            ":mine": number_of(mine),
            ":one": number_of(1),
        }
        item = self._update(gateway, name, "SET lu = :until ADD le :one", _IS_FREE, values)
        return _connector(item) if item else None

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save the progress of one; a write unit for each KB of it."""
        values = {
            ":ps": binary(state),
            ":until": number_of(until_ms),
            ":mine": number_of(lease),
        }
        return (
            self._update(gateway, name, "SET ps = :ps, lu = :until", _IS_MINE, values) is not None
        )

    def _update(
        self, gateway: str, name: str, change: str, condition: str, values: dict[str, Any]
    ) -> dict[str, Any] | None:
        return self._updated((keys.connector_pk(gateway), name), change, condition, values)


def _connector(item: dict[str, Any]) -> StoredConnector:
    state = data(item, "ps") if "ps" in item else b""
    return StoredConnector(
        text(item, "sk"), data(item, "d"), state, number(item, "le"), number(item, "lu")
    )
