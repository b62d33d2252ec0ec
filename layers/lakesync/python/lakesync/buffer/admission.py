"""What decides whether a caller is admitted, on DynamoDB: users, revocations, quotas, tickets.

Users, revocations and quotas are items beside the buffer's own, in the same table. A client is one
item: its user, written once, and what was last noted of it, which is read with the user at no extra
cost (``nc`` the cursor, ``nq`` the quarantined edits, ``na`` when). All revocations of a gateway
are in one item collection, so that one query reads them: a read unit for about thirty. Of usage and
quotas there is one item for each gateway.

A ticket opens one WebSocket. It lies beside the connections in their table:

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

from lakesync.buffer import item_format
from lakesync.buffer.caller import Refusal
from lakesync.buffer.requests import NEVER_WRITTEN, encode, key, query_after
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.table_calls import TableCalls, number, text
from lakesync.errors import Contention, Unavailable
from lakesync.ports import KnownClient, Quota, Revocation, Seen, Usage, WindowUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

# --- users and revocations ------------------------------------------------------------------------


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
        item = self._get(item_format.user_pk(gateway, client_id), client_id)
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
        for part, pk in enumerate(item_format.user_pks(gateway)[first:], start=first):
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
        pk, after = item_format.revoked_pk(gateway), ""
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
    return key(item_format.user_pk(gateway, client_id), client_id)


def _revoked(gateway: str, kind: str, name: str) -> dict[str, Any]:
    return key(item_format.revoked_pk(gateway), item_format.revoked_sk(kind, name))


def _known(item: dict[str, Any]) -> KnownClient:
    seen = None
    if "na" in item:
        quarantined = number(item, "nq") if "nq" in item else None
        seen = Seen(number(item, "na"), number(item, "nc"), quarantined)
    return KnownClient(text(item, "sk"), text(item, "us"), seen)


def _revocation(item: dict[str, Any]) -> Revocation:
    kind, _, name = text(item, "sk").partition("|")
    return Revocation(kind, name, number(item, "ms"), text(item, "ad"))


# --- quotas ---------------------------------------------------------------------------------------


WINDOWS_AHEAD_MAX: Final = 12
"""Windows by which another process's clock may be ahead. A window further ahead was written by a
wrong clock, and is begun again: else nothing would be admitted until that time."""
_IS_ON: Final = "w BETWEEN :w AND :most"
_IS_OVER: Final = "attribute_not_exists(w) OR w < :w OR w > :most"
_USED: Final = ("np", "nd", "nb")
_MAY: Final = ("qp", "qd", "qb")
_TRIES: Final = 3


class DynamoQuotas(TableCalls):
    """`lakesync.ports.QuotaStore` in the buffer's DynamoDB table."""

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to the usage; one write unit, two if the window begins."""
        values = {":w": number_of(window), ":most": number_of(window + WINDOWS_AHEAD_MAX)}
        values |= {f":{name}": number_of(used) for name, used in zip(_USED, usage, strict=True)}
        added = ", ".join(f"{name} :{name}" for name in _USED)
        begun = ", ".join(f"{name} = :{name}" for name in _USED)
        for _ in range(_TRIES):
            item = self._update(gateway, f"ADD {added}", _IS_ON, values)
            item = item or self._update(gateway, f"SET w = :w, {begun}", _IS_OVER, values)
            if item is not None:
                used = Usage(*(number(item, name) for name in _USED))
                return WindowUsage(number(item, "w"), used, _quota(item))
        raise Unavailable("reports of what is used crossed; nothing was added")

    def quota(self, gateway: str) -> Quota:
        """Return a gateway's quota; a read unit."""
        return _quota(self._get(item_format.quota_pk(gateway), item_format.QUOTA))

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use; a write unit."""
        limits = dict(zip(_MAY, quota, strict=True))
        changes = []
        if kept := [name for name, limit in limits.items() if limit is not None]:
            changes.append("SET " + ", ".join(f"{name} = :{name}" for name in kept))
        if gone := [name for name in limits if name not in kept]:
            changes.append("REMOVE " + ", ".join(gone))
        body: dict[str, Any] = {
            "TableName": self._table,
            "Key": key(item_format.quota_pk(gateway), item_format.QUOTA),
            "UpdateExpression": " ".join(changes),
        }
        if kept:
            values = {f":{name}": number_of(limits[name] or 0) for name in kept}
            body["ExpressionAttributeValues"] = values
        self._call("UpdateItem", encode(body))

    def _update(
        self, gateway: str, change: str, condition: str, values: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        return self._updated(
            (item_format.quota_pk(gateway), item_format.QUOTA), change, condition, values
        )


def _quota(item: dict[str, Any]) -> Quota:
    return Quota(*(number(item, name) if name in item else None for name in _MAY))


# --- tickets --------------------------------------------------------------------------------------


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
