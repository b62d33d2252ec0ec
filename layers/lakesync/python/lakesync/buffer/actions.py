"""The action handlers of gateways, in the buffer's table; the runs of actions, in their own.

Runs have a table of their own because they expire, and because the function that runs actions needs
to write nothing else:

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
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final
from zlib import crc32

from lakesync.buffer import keys
from lakesync.buffer.answers import data, number, text
from lakesync.buffer.calls import TableCalls
from lakesync.buffer.keys import check_gateway
from lakesync.buffer.requests import NEVER_WRITTEN, binary, encode, key
from lakesync.buffer.requests import number as number_of
from lakesync.buffer.requests import text as text_of
from lakesync.buffer.upkeep_requests import query_after
from lakesync.ports import ActionKey, ActionRun, RunState, StoredHandler

REMEMBERED_DAYS: Final = 30
"""How long the outcome of an action is stored: a client that repeats it later runs it again."""
_PAGE_ITEMS: Final = 100
_DAY_S: Final = 86_400
_MINUTE_MS: Final = 60_000


class DynamoHandlers(TableCalls):
    """`lakesync.ports.HandlerStore` in the buffer's DynamoDB table."""

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Return a gateway's action handlers; a read unit for about five."""
        pk, after = keys.action_pk(gateway), ""
        items: list[dict[str, Any]] = []
        while True:
            answer = self._read("Query", query_after(self._table, pk, after, _PAGE_ITEMS))
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return [StoredHandler(text(item, "sk"), data(item, "d")) for item in items]
            after = text(answer["LastEvaluatedKey"], "sk")

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; a write unit for each KB."""
        item = {**key(keys.action_pk(gateway), name), "d": binary(definition)}
        condition = {} if replace else {"ConditionExpression": NEVER_WRITTEN}
        body = {"TableName": self._table, "Item": item, **condition}
        return self._conditionally("PutItem", encode(body))

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; a write unit."""
        body = {
            "TableName": self._table,
            "Key": key(keys.action_pk(gateway), name),
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
    part = crc32(client_id.encode()) % keys.CLIENT_PARTS
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
