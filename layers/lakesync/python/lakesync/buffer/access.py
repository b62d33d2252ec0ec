"""The users of clients, and the revocations: items beside the buffer's own, in the same table.

A client is one item: its user, written once, and what was last noted of it, which is read with the
user at no extra cost (``nc`` the cursor, ``nq`` the quarantined edits, ``na`` when). All
revocations of a gateway are in one item collection, so that one query reads them: a read unit for
about thirty.
"""

from __future__ import annotations

from typing import Any, Final

from lakesync.buffer import keys
from lakesync.buffer.answers import number, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.requests import NEVER_WRITTEN, encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.upkeep_requests import query_after
from lakesync.errors import Contention
from lakesync.ports import KnownClient, Revocation, Seen

_PAGE_ITEMS: Final = 1_000


class DynamoAccess(TableCalls):
    """`lakesync.ports.AccessStore` in the buffer's DynamoDB table."""

    def client(self, gateway: str, client_id: str) -> KnownClient | None:
        """Return a client; half a read unit, as it may be a moment old."""
        body = {"TableName": self._table, "Key": _client(gateway, client_id)}
        item = self._read("GetItem", encode(body)).get("Item")
        return _known(item) if item else None

    def note(self, gateway: str, client_id: str, seen: Seen) -> None:
        """Note what was seen of a client; a write unit."""
        values = {":na": number_of(seen.at_ms), ":nc": number_of(seen.cursor)}
        change = "SET na = :na, nc = :nc REMOVE nq"
        if seen.quarantined is not None:
            values[":nq"] = number_of(seen.quarantined)
            change = "SET na = :na, nc = :nc, nq = :nq"
        is_later = "attribute_exists(us) AND (attribute_not_exists(na) OR na < :na)"
        body = {
            "TableName": self._table,
            "Key": _client(gateway, client_id),
            "UpdateExpression": change,
            "ConditionExpression": is_later,
            "ExpressionAttributeValues": values,
        }
        self._conditionally("UpdateItem", encode(body))

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        """Bind a client, unless it is bound; a write unit, and a read unit if it was."""
        body = {
            "TableName": self._table,
            "Key": _client(gateway, client_id),
            "UpdateExpression": "SET us = :us",
            "ConditionExpression": NEVER_WRITTEN,
            "ExpressionAttributeValues": {":us": text_of(user)},
        }
        # Idempotent: if a try's answer was lost, what it wrote is this user's.
        if self._conditionally("UpdateItem", encode(body)):
            return user
        item = self._get(keys.user_pk(gateway, client_id), client_id)
        if not item:
            raise Contention("the client is being released; try again in a moment")
        return text(item, "us")

    def release(self, gateway: str, client_id: str) -> None:
        """Bind a client to no user; a write unit."""
        self._delete(_client(gateway, client_id))

    def clients(self, gateway: str, place: str, limit: int) -> tuple[list[KnownClient], str]:
        """Return some clients; a read unit for about thirty, and at least 16 in total."""
        first, after = (int(place[0], 16), place[1:]) if place else (0, "")
        clients: list[KnownClient] = []
        for part, pk in enumerate(keys.user_pks(gateway)[first:], start=first):
            has_more = True
            while has_more:
                if len(clients) == limit:
                    return clients, f"{part:x}{after}"
                body = query_after(self._table, pk, after, limit - len(clients))
                answer = self._read("Query", body)
                clients += map(_known, answer["Items"])
                has_more = "LastEvaluatedKey" in answer
                after = text(answer["LastEvaluatedKey"], "sk") if has_more else ""
        return clients, ""

    def revocations(self, gateway: str) -> list[Revocation]:
        """Return all revocations; a read unit for about thirty, at least one."""
        pk, after = keys.revoked_pk(gateway), ""
        revocations: list[Revocation] = []
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            revocations += map(_revocation, answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return revocations
            after = text(answer["LastEvaluatedKey"], "sk")

    def revoke(self, gateway: str, revocation: Revocation) -> None:
        """Revoke a user or a client; a write unit."""
        item = {
            **_revoked(gateway, revocation.kind, revocation.name),
            "ms": number_of(revocation.at_ms),
            "ad": text_of(revocation.by),
        }
        self._call("PutItem", encode({"TableName": self._table, "Item": item}))

    def restore(self, gateway: str, kind: str, name: str) -> None:
        """Let a user or a client in again; a write unit."""
        self._delete(_revoked(gateway, kind, name))

    def _delete(self, item: dict[str, Any]) -> None:
        self._call("DeleteItem", encode({"TableName": self._table, "Key": item}))


def _client(gateway: str, client_id: str) -> dict[str, Any]:
    return key(keys.user_pk(gateway, client_id), client_id)


def _revoked(gateway: str, kind: str, name: str) -> dict[str, Any]:
    return key(keys.revoked_pk(gateway), keys.revoked_sk(kind, name))


def _known(item: dict[str, Any]) -> KnownClient:
    seen = None
    if "na" in item:
        quarantined = number(item, "nq") if "nq" in item else None
        seen = Seen(number(item, "na"), number(item, "nc"), quarantined)
    return KnownClient(text(item, "sk"), text(item, "us"), seen)


def _revocation(item: dict[str, Any]) -> Revocation:
    kind, _, name = text(item, "sk").partition("|")
    return Revocation(kind, name, number(item, "ms"), text(item, "ad"))
