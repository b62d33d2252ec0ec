"""What administrators keep of a gateway, on DynamoDB: connectors, action handlers, the audit.

Connectors and action handlers are one item for each, in the buffer's table. A poll without news
costs three write units: the lease, its beginning and its end.

Runs of actions have a table of their own because they expire, and because the function that runs
actions needs to write nothing else:

====================  ==================  ==================  ===========================
item                  pk                  sk                  attributes
====================  ==================  ==================  ===========================
run                   ``gw|hash``         ``a|digest``        id dg st ow u d x
idempotency key       ``gw|hash``         ``k|digest``        id x
count of a minute     ``gw|hash``         ``c|digest``        n x
====================  ==================  ==================  ===========================

The hash is one digit, from the client. The digest is of the client and the action id, or the key,
so that no text of a client is part of a key. Attributes: ``d`` outcome, ``dg`` digest of the
request, ``id`` action id, ``n`` number, ``ow`` owner, ``st`` state, ``u`` until, ``x`` when
DynamoDB may remove it.

An action costs one read unit, or two with an idempotency key, and three write units (one to count,
one to begin, one to end), seven with a key, because beginning is then a transaction of two items.

Audit records have a table of their own because they are kept when a gateway is deleted, and because
nobody may remove one: the function that writes them has no permission to. The keys are the gateway
and the record's id. Attributes: ``af`` after, ``bf`` before, ``cd`` code, ``e`` ended, ``ms``
milliseconds, ``oc`` outcome, ``op`` operation, ``ro`` role, ``rq`` request, ``tg`` target, ``us``
user, ``x`` when DynamoDB may remove it. A record is put before the change and updated after it: two
to fourteen write units together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

from lakesync.buffer import item_format
from lakesync.buffer.item_format import check_gateway
from lakesync.buffer.requests import NEVER_WRITTEN, binary, encode, key, query_after
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.table_calls import TableCalls, data, number, text
from lakesync.ports import (
    ActionKey,
    ActionRun,
    AuditOutcome,
    AuditQuery,
    AuditRecord,
    RunState,
    StoredConnector,
    StoredHandler,
)
from lakesync.ports.stores import STACK, id_of_time

# --- connectors -----------------------------------------------------------------------------------


_PAGE_ITEMS: Final = 100
_AS_SEEN: Final = "d = :seen"
_IS_FREE: Final = "attribute_exists(pk) AND (lu <= :now OR le = :mine)"
_IS_MINE: Final = "le = :mine"


class DynamoConnectors(TableCalls):
    """`lakesync.ports.ConnectorStore` in the buffer's DynamoDB table."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors; a read unit for about five."""
        pk, after = item_format.connector_pk(gateway), ""
        items: list[dict[str, Any]] = []
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return [_connector(item) for item in items]
            after = text(answer["LastEvaluatedKey"], "sk")

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Return one; a read unit."""
        item = self._get(item_format.connector_pk(gateway), name)
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
        item = key(item_format.connector_pk(gateway), name)
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
        return self._updated((item_format.connector_pk(gateway), name), change, condition, values)


def _connector(item: dict[str, Any]) -> StoredConnector:
    state = data(item, "ps") if "ps" in item else b""
    return StoredConnector(
        text(item, "sk"), data(item, "d"), state, number(item, "le"), number(item, "lu")
    )


# --- actions --------------------------------------------------------------------------------------


REMEMBERED_DAYS: Final = 30
"""How long the outcome of an action is stored: a client that repeats it later runs it again."""
_DAY_S: Final = 86_400
_MINUTE_MS: Final = 60_000


class DynamoHandlers(TableCalls):
    """`lakesync.ports.HandlerStore` in the buffer's DynamoDB table."""

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Return a gateway's action handlers; a read unit for about five."""
        pk, after = item_format.action_pk(gateway), ""
        items: list[dict[str, Any]] = []
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return [StoredHandler(text(item, "sk"), data(item, "d")) for item in items]
            after = text(answer["LastEvaluatedKey"], "sk")

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; a write unit for each KB."""
        item = {**key(item_format.action_pk(gateway), name), "d": binary(definition)}
        condition = {} if replace else {"ConditionExpression": NEVER_WRITTEN}
        body = {"TableName": self._table, "Item": item, **condition}
        return self._conditionally("PutItem", encode(body))

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; a write unit."""
        body = {
            "TableName": self._table,
            "Key": key(item_format.action_pk(gateway), name),
            "ConditionExpression": "attribute_exists(pk)",
        }
        return self._conditionally("DeleteItem", encode(body))


class DynamoRuns(TableCalls):
    """`lakesync.ports.ActionRuns` in a DynamoDB table."""

    def get(self, key: ActionKey) -> ActionRun | None:
        """Return the run of an action; a read unit or two."""
        by_id = _place(key.gateway, key.client_id, "a", key.action_id)
        item = self._get(*by_id)
        if item or not key.idempotency_key:
            return _run(item) if item else None
        named = self._get(*_place(key.gateway, key.client_id, "k", key.idempotency_key))
        if not named:
            return None
        item = self._get(*_place(key.gateway, key.client_id, "a", text(named, "id")))
        return _run(item) if item else None

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run; a write unit, or four with an idempotency key that is new."""
        if seen is not None:
            return self._change(key, run, now_ms, ("ow = :seen", text_of(seen.owner)), seen.state)
        place = _place(key.gateway, key.client_id, "a", run.action_id)
        first = self._put(place, _attributes(run, now_ms))
        if not key.idempotency_key:
            return self._conditionally("PutItem", encode(first))
        second = self._put(
            _place(key.gateway, key.client_id, "k", key.idempotency_key),
            {"id": text_of(run.action_id), "x": _forgotten(now_ms)},
        )
        body = {"TransactItems": [{"Put": first}, {"Put": second}]}
        return self._conditionally("TransactWriteItems", encode(body))

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Store the state of a run; a write unit for each KB of its outcome."""
        condition = ("ow = :seen", text_of(run.owner))
        return self._change(key, run, now_ms, condition, RunState.RUNNING)

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute; a write unit."""
        minute = now_ms // _MINUTE_MS
        values = {":one": number_of(1), ":max": number_of(number_max),
                  ":x": number_of(minute * 60 + 3_600)}  # fmt: skip
        place = _place(gateway, counter, "c", str(minute))
        change, condition = "SET x = :x ADD n :one", "attribute_not_exists(n) OR n < :max"
        return self._updated(place, change, condition, values) is not None

    def _put(self, place: tuple[str, str], attributes: dict[str, Any]) -> dict[str, Any]:
        return {
            "TableName": self._table,
            "Item": {**key(*place), **attributes},
            "ConditionExpression": NEVER_WRITTEN,
        }

    def _change(
        self,
        key: ActionKey,
        run: ActionRun,
        now_ms: int,
        condition: tuple[str, dict[str, str]],
        state: RunState,
    ) -> bool:
        attributes = _attributes(run, now_ms)
        change = "SET " + ", ".join(f"{name} = :{name}" for name in attributes)
        values = {f":{name}": value for name, value in attributes.items()}
        values |= {":seen": condition[1], ":state": text_of(state.value)}
        place = _place(key.gateway, key.client_id, "a", run.action_id)
        asked = f"{condition[0]} AND st = :state"
        return self._updated(place, change, asked, values) is not None


def _place(gateway: str, client_id: str, kind: str, name: str) -> tuple[str, str]:
    part = crc32(client_id.encode()) % item_format.CLIENT_PARTS
    named = json.dumps([client_id, name], ensure_ascii=True)
    return f"{check_gateway(gateway)}|{part:x}", f"{kind}|{_digest(named)}"


def _digest(named: str) -> str:
    return hashlib.sha256(named.encode()).hexdigest()


def _attributes(run: ActionRun, now_ms: int) -> dict[str, Any]:
    return {
        "id": text_of(run.action_id),
        "dg": text_of(run.digest),
        "st": text_of(run.state.value),
        "ow": text_of(run.owner),
        "u": number_of(run.until_ms),
        "d": binary(run.outcome),
        "x": _forgotten(now_ms),
    }


def _forgotten(now_ms: int) -> dict[str, str]:
    return number_of(now_ms // 1000 + REMEMBERED_DAYS * _DAY_S)


def _run(item: dict[str, Any]) -> ActionRun:
    return ActionRun(
        text(item, "id"), text(item, "dg"), RunState(text(item, "st")), text(item, "ow"),
        number(item, "u"), data(item, "d"),
    )  # fmt: skip


# --- audit records --------------------------------------------------------------------------------


READS_MAX: Final = 10
"""Reads of 1 MB that one page of records may take, if few records pass its filters."""
_LAST: Final = "g"
"""Above every id: ids begin with hexadecimal digits."""


def owner_of(gateway: str) -> str:
    """Return the id if it names an owner of records: a gateway, or the stack."""
    return gateway if gateway == STACK else check_gateway(gateway)


def bounds(query: AuditQuery) -> tuple[str, str]:
    """Return the lowest and the highest sort key that a query may return, both inclusive."""
    highest = _LAST if query.until_ms is None else id_of_time(query.until_ms)
    return id_of_time(query.since_ms), min(highest, query.below or _LAST)


class DynamoAudit(TableCalls):
    """`lakesync.ports.AuditStore` in a DynamoDB table."""

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        """Write a record; a write unit for each KB."""
        item = {
            **key(owner_of(record.gateway), record.id),
            "ms": number_of(record.at_ms),
            "us": text_of(record.user),
            "ro": text_of(record.role),
            "op": text_of(record.operation),
            "tg": text_of(record.target),
            "rq": text_of(record.request),
            "bf": text_of(record.before),
            "oc": text_of(record.outcome.value),
            "x": number_of(keep_until_s),
        }
        body = {"TableName": self._table, "Item": item, "ConditionExpression": NEVER_WRITTEN}
        # Ids are unique: an existing record was written by a try whose answer was lost.
        self._conditionally("PutItem", encode(body))

    def end(self, record: AuditRecord) -> None:
        """Write a record's outcome; a write unit for each KB."""
        values = {
            ":af": text_of(record.after),
            ":oc": text_of(record.outcome.value),
            ":cd": text_of(record.code),
            ":e": number_of(record.ended_ms),
            ":begun": text_of(AuditOutcome.STARTED.value),
        }
        change = "SET af = :af, oc = :oc, cd = :cd, e = :e"
        self._updated((owner_of(record.gateway), record.id), change, "oc = :begun", values)

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first; half a read unit for each 4 KB that is read."""
        records: list[AuditRecord] = []
        last: dict[str, Any] = {}
        for _ in range(READS_MAX):
            answer = self._read("Query", self._request(gateway, query, last))
            for item in answer["Items"]:
                if text(item, "sk") == query.below:
                    continue
                if len(records) == query.limit:
                    return records, records[-1].id
                records.append(_record(item))
            last = answer.get("LastEvaluatedKey", {})
            if not last:
                return records, ""
        return records, text(last, "sk")

    def _request(self, gateway: str, query: AuditQuery, last: dict[str, Any]) -> bytes:
        low, high = bounds(query)
        values = {":pk": text_of(owner_of(gateway)), ":low": text_of(low)}
        values[":high"] = text_of(high)
        wanted = {"us": query.user, "op": query.operation}
        filters = [f"{name} = :{name}" for name, value in wanted.items() if value]
        values |= {f":{name}": text_of(value) for name, value in wanted.items() if value}
        return encode(
            {
                "TableName": self._table,
                "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
                "ExpressionAttributeValues": values,
                "ScanIndexForward": False,
                **({"FilterExpression": " AND ".join(filters)} if filters else {}),
                # One more than requested, and the last one of the page before.
                **({} if filters else {"Limit": query.limit + 2}),
                **({"ExclusiveStartKey": last} if last else {}),
            }
        )


def _record(item: dict[str, Any]) -> AuditRecord:
    begun = AuditRecord(
        text(item, "pk"), text(item, "sk"), number(item, "ms"), text(item, "us"), text(item, "ro"),
        text(item, "op"), text(item, "tg"), text(item, "rq"), text(item, "bf"),
    )  # fmt: skip
    if "af" not in item:
        return begun
    return replace(
        begun,
        after=text(item, "af"),
        outcome=AuditOutcome(text(item, "oc")),
        code=text(item, "cd"),
        ended_ms=number(item, "e"),
    )
