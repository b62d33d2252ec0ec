"""What administrators keep of a gateway, over an item store: connectors, actions, the audit.

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
from typing import TYPE_CHECKING, Final
from zlib import crc32

from lakesync.buffer import item_format
from lakesync.buffer.item_format import check_gateway
from lakesync.buffer.items import (
    ALWAYS,
    MISSING,
    NEVER_WRITTEN,
    WRITTEN,
    Change,
    Check,
    NewItem,
    where,
)
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

if TYPE_CHECKING:
    from lakesync.buffer.items import Condition, Item, ItemStore, Value

# --- connectors -----------------------------------------------------------------------------------


class ItemConnectors:
    """`lakesync.ports.ConnectorStore` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def connectors(self, gateway: str) -> list[StoredConnector]:
        return [*map(_connector, self._items.query_all(item_format.connector_pk(gateway)))]

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        item = self._items.get(item_format.connector_pk(gateway), name)
        return _connector(item) if item else None

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register one; its leases begin at the time, so no lease of a removed one is valid."""
        change = Change({"d": definition, "le": now_ms, "lu": 0})
        return self._update(gateway, name, change, NEVER_WRITTEN)

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        return self._update(gateway, name, Change({"d": definition}), where("d", "=", seen))

    def remove(self, gateway: str, name: str) -> None:
        self._items.delete(item_format.connector_pk(gateway), name)

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        change = Change({"lu": until_ms}, add={"le": 1})
        is_free = (*WRITTEN, (Check("lu", "<=", now_ms), Check("le", "=", mine)))
        item = self._items.updated(item_format.connector_pk(gateway), name, change, is_free)
        return _connector(item) if item else None

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        change = Change({"ps": state, "lu": until_ms})
        return self._update(gateway, name, change, where("le", "=", lease))

    def _update(self, gateway: str, name: str, change: Change, condition: Condition) -> bool:
        return self._items.update(item_format.connector_pk(gateway), name, change, condition)


def _connector(item: Item) -> StoredConnector:
    return StoredConnector(item["sk"], item["d"], item.get("ps", b""), item["le"], item["lu"])


# --- actions --------------------------------------------------------------------------------------


REMEMBERED_DAYS: Final = 30
"""How long the outcome of an action is stored: a client that repeats it later runs it again."""
_DAY_S: Final = 86_400
_MINUTE_MS: Final = 60_000


class ItemHandlers:
    """`lakesync.ports.HandlerStore` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def handlers(self, gateway: str) -> list[StoredHandler]:
        items = self._items.query_all(item_format.action_pk(gateway))
        return [StoredHandler(item["sk"], item["d"]) for item in items]

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        item = NewItem(item_format.action_pk(gateway), name, {"d": definition})
        return self._items.put(item, ALWAYS if replace else NEVER_WRITTEN)

    def remove(self, gateway: str, name: str) -> bool:
        return self._items.delete(item_format.action_pk(gateway), name, WRITTEN)


class ItemRuns:
    """`lakesync.ports.ActionRuns` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def get(self, key: ActionKey) -> ActionRun | None:
        item = self._items.get(*_place(key, "a", key.action_id))
        if item or not key.idempotency_key:
            return _run(item) if item else None
        named = self._items.get(*_place(key, "k", key.idempotency_key))
        if not named:
            return None
        item = self._items.get(*_place(key, "a", named["id"]))
        return _run(item) if item else None

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        if seen is not None:
            return self._change(key, run, now_ms, seen.owner, seen.state)
        first = NewItem(*_place(key, "a", run.action_id), _attributes(run, now_ms))
        if not key.idempotency_key:
            return self._items.put(first, NEVER_WRITTEN)
        named: dict[str, Value] = {"id": run.action_id, "x": _expires_s(now_ms)}
        return self._items.add_all([first, NewItem(*_place(key, "k", key.idempotency_key), named)])

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        return self._change(key, run, now_ms, run.owner, RunState.RUNNING)

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        minute = now_ms // _MINUTE_MS
        place = _place(ActionKey(gateway, counter, "", ""), "c", str(minute))
        change = Change({"x": minute * 60 + 3_600}, add={"n": 1})
        is_below = (Check("n", MISSING), Check("n", "<", number_max))
        return self._items.update(*place, change, (is_below,))

    def _change(
        self, key: ActionKey, run: ActionRun, now_ms: int, owner: str, state: RunState
    ) -> bool:
        """Store a run, if it has this owner and this state."""
        as_seen = (*where("ow", "=", owner), *where("st", "=", state.value))
        change = Change(_attributes(run, now_ms))
        return self._items.update(*_place(key, "a", run.action_id), change, as_seen)


def _place(key: ActionKey, kind: str, name: str) -> tuple[str, str]:
    part = crc32(key.client_id.encode()) % item_format.CLIENT_PARTS
    named = json.dumps([key.client_id, name], ensure_ascii=True)
    digest = hashlib.sha256(named.encode()).hexdigest()
    return f"{check_gateway(key.gateway)}|{part:x}", f"{kind}|{digest}"


def _attributes(run: ActionRun, now_ms: int) -> dict[str, Value]:
    return {
        "id": run.action_id,
        "dg": run.digest,
        "st": run.state.value,
        "ow": run.owner,
        "u": run.until_ms,
        "d": run.outcome,
        "x": _expires_s(now_ms),
    }


def _expires_s(now_ms: int) -> int:
    return now_ms // 1000 + REMEMBERED_DAYS * _DAY_S


def _run(item: Item) -> ActionRun:
    state = RunState(item["st"])
    return ActionRun(item["id"], item["dg"], state, item["ow"], item["u"], item["d"])


# --- audit records --------------------------------------------------------------------------------


READS_MAX: Final = 10
"""Reads of 1 MB that one page of records may take, if few records pass its filters."""
_LAST: Final = "g"
"""Above every id: ids begin with hexadecimal digits."""


class ItemAudit:
    """`lakesync.ports.AuditStore` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        attributes: dict[str, Value] = {
            "ms": record.at_ms,
            "us": record.user,
            "ro": record.role,
            "op": record.operation,
            "tg": record.target,
            "rq": record.request,
            "bf": record.before,
            "oc": record.outcome.value,
            "x": keep_until_s,
        }
        # Ids are unique: an existing record was written by a try whose answer was lost.
        self._items.put(NewItem(_owner(record.gateway), record.id, attributes), NEVER_WRITTEN)

    def end(self, record: AuditRecord) -> None:
        change = Change({
            "af": record.after,
            "oc": record.outcome.value,
            "cd": record.code,
            "e": record.ended_ms,
        })  # fmt: skip
        has_begun = where("oc", "=", AuditOutcome.STARTED.value)
        self._items.update(_owner(record.gateway), record.id, change, has_begun)

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first; half a read unit for each 4 KB that is read."""
        records: list[AuditRecord] = []
        highest = _LAST if query.until_ms is None else id_of_time(query.until_ms)
        between = id_of_time(query.since_ms), min(highest, query.below or _LAST)
        equal = {"us": query.user, "op": query.operation}
        equal = {name: value for name, value in equal.items() if value}
        below = ""
        for _ in range(READS_MAX):
            # One more than requested, and the last one of the page before.
            limit = query.limit + 2
            items, below = self._items.query_back(_owner(gateway), between, below, equal, limit)
            for item in items:
                if item["sk"] == query.below:
                    continue
                if len(records) == query.limit:
                    return records, records[-1].id
                records.append(_record(item))
            if not below:
                return records, ""
        return records, below


def _owner(gateway: str) -> str:
    """Return the id if it names an owner of records: a gateway, or the stack."""
    return gateway if gateway == STACK else check_gateway(gateway)


def _record(item: Item) -> AuditRecord:
    begun = AuditRecord(
        item["pk"], item["sk"], item["ms"], item["us"], item["ro"], item["op"], item["tg"],
        item["rq"], item["bf"],
    )  # fmt: skip
    if "af" not in item:
        return begun
    outcome = AuditOutcome(item["oc"])
    return replace(begun, after=item["af"], outcome=outcome, code=item["cd"], ended_ms=item["e"])
