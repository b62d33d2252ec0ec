"""An item store in a DynamoDB table: items, conditions and changes as requests and answers."""

from __future__ import annotations

import json
from base64 import b64decode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import item_format, requests
from lakesync.buffer.caller import Refusal
from lakesync.buffer.dynamo import Upkeep
from lakesync.buffer.item_format import Partition, side_partitions
from lakesync.buffer.items import ALWAYS, EXISTS, MISSING, NEVER_WRITTEN, Item
from lakesync.buffer.table_calls import THREADS_MAX, TableCalls, text
from lakesync.core.layout import lane_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.buffer.items import Change, Check, Condition, NewItem, Value
    from lakesync.ports import Head


class DynamoItemStore(TableCalls):
    """`lakesync.buffer.items.ItemStore` in a DynamoDB table.

    A read costs a read unit for each 4 KB, half of that if it need not be consistent. A write costs
    a write unit for each KB, whether its condition holds or not; in `add_all` twice that.
    """

    def get(self, pk: str, sk: str, *, consistent: bool = True) -> Item:
        if consistent:
            return _item(self._get(pk, sk))
        body = {"TableName": self._table, "Key": requests.key(pk, sk)}
        return _item(self._read("GetItem", requests.encode(body)).get("Item", {}))

    def query(self, pk: str, after: str, limit: int) -> tuple[list[Item], str]:
        answer = self._read("Query", requests.query_after(self._table, pk, after, limit))
        last = answer.get("LastEvaluatedKey")
        return [*map(_item, answer["Items"])], text(last, "sk") if last else ""

    def query_all(self, pk: str) -> list[Item]:
        return [*map(_item, self._query_all(pk))]

    def query_back(
        self, pk: str, between: tuple[str, str], below: str, equal: Mapping[str, str], limit: int
    ) -> tuple[list[Item], str]:
        values = {":pk": pk, ":low": between[0], ":high": between[1]}
        values |= {f":{name}": value for name, value in equal.items()}
        bound: dict[str, Any] = {"Limit": limit}
        if equal:
            bound = {"FilterExpression": " AND ".join(f"{name} = :{name}" for name in equal)}
        if below:
            bound["ExclusiveStartKey"] = requests.key(pk, below)
        body = {
            "TableName": self._table,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": _attributes(values),
            "ScanIndexForward": False,
            **bound,
        }
        answer = self._read("Query", requests.encode(body))
        last = answer.get("LastEvaluatedKey")
        return [*map(_item, answer["Items"])], text(last, "sk") if last else ""

    def scan(self, place: str, having: str, limit: int) -> tuple[list[Item], str]:
        body = {
            "TableName": self._table,
            "FilterExpression": f"attribute_exists({having})",
            "Limit": limit,
            **({"ExclusiveStartKey": json.loads(place)} if place else {}),
        }
        answer = self._read("Scan", requests.encode(body))
        last = answer.get("LastEvaluatedKey")
        return [*map(_item, answer["Items"])], json.dumps(last) if last else ""

    def put(self, item: NewItem, condition: Condition = ALWAYS) -> bool:
        return self._write("PutItem", self._put(item, condition)) is not None

    def add_all(self, items: Sequence[NewItem]) -> bool:
        puts = [{"Put": self._put(item, NEVER_WRITTEN)} for item in items]
        return self._write("TransactWriteItems", {"TransactItems": puts}) is not None

    def update(self, pk: str, sk: str, change: Change, condition: Condition = ALWAYS) -> bool:
        return self._write("UpdateItem", self._update(pk, sk, change, condition)) is not None

    def updated(self, pk: str, sk: str, change: Change, condition: Condition) -> Item | None:
        body = self._update(pk, sk, change, condition)
        return self._write("UpdateItem", {**body, "ReturnValues": "ALL_NEW"})

    def delete(self, pk: str, sk: str, condition: Condition = ALWAYS) -> bool:
        return self._write("DeleteItem", self._delete(pk, sk, condition)) is not None

    def take(self, pk: str, sk: str, condition: Condition) -> Item | None:
        body = self._delete(pk, sk, condition)
        return self._write("DeleteItem", {**body, "ReturnValues": "ALL_OLD"})

    def _write(self, operation: str, body: Mapping[str, Any]) -> Item | None:
        """Return the attributes of the answer; None if a condition failed.

        A write without a condition is never refused, except as the fault that it is.
        """
        try:
            answer = self._call(operation, requests.encode(body))
        except Refusal:
            if "ConditionExpression" not in body and operation != "TransactWriteItems":
                raise
            return None
        return _item(answer.get("Attributes", {}))

    def _put(self, item: NewItem, condition: Condition) -> dict[str, Any]:
        return {
            "TableName": self._table,
            "Item": attributes_of(item),
            **_conditional(condition, {}),
        }

    def _update(self, pk: str, sk: str, change: Change, condition: Condition) -> dict[str, Any]:
        values = {f":{name}": value for name, value in (*change.put.items(), *change.add.items())}
        clauses = {
            "SET": [f"{name} = :{name}" for name in change.put],
            "ADD": [f"{name} :{name}" for name in change.add],
            "REMOVE": change.remove,
        }
        expression = " ".join(f"{word} {', '.join(of)}" for word, of in clauses.items() if of)
        key = {"TableName": self._table, "Key": requests.key(pk, sk)}
        return {**key, "UpdateExpression": expression, **_conditional(condition, values)}

    def _delete(self, pk: str, sk: str, condition: Condition) -> dict[str, Any]:
        key = {"TableName": self._table, "Key": requests.key(pk, sk)}
        return {**key, **_conditional(condition, {})}


def attributes_of(item: NewItem) -> dict[str, dict[str, str]]:
    """Return an item as DynamoDB writes it, with its keys."""
    return {**requests.key(item.pk, item.sk), **_attributes(item.attributes)}


def _conditional(condition: Condition, values: dict[str, Value]) -> dict[str, Any]:
    """Return the condition of a write, and all values that its expressions name."""
    groups = [[_checked(check, values) for check in group] for group in condition]
    parts = [" OR ".join(checks) for checks in groups]
    if len(parts) > 1:
        parts = [
            f"({part})" if len(of) > 1 else part for part, of in zip(parts, groups, strict=True)
        ]
    body: dict[str, Any] = {"ConditionExpression": " AND ".join(parts)} if parts else {}
    return {**body, "ExpressionAttributeValues": _attributes(values)} if values else body


def _checked(check: Check, values: dict[str, Value]) -> str:
    if check.relation == EXISTS:
        return f"attribute_exists({check.attribute})"
    if check.relation == MISSING:
        return f"attribute_not_exists({check.attribute})"
    name = f":c{len(values)}"
    values[name] = check.value
    return f"{check.attribute} {check.relation} {name}"


def _attributes(values: Mapping[str, Value]) -> dict[str, dict[str, str]]:
    return {name: _attribute(value) for name, value in values.items()}


def _attribute(value: Value) -> dict[str, str]:
    if isinstance(value, str):
        return requests.text(value)
    return requests.binary(value) if isinstance(value, bytes) else {"N": repr(value)}


def _item(attributes: Mapping[str, Mapping[str, str]]) -> Item:
    return {name: _value(*attribute.items()) for name, attribute in attributes.items()}


def _value(of: tuple[str, str]) -> Value:
    kind, written = of
    if kind == "S":
        return written
    if kind == "B":
        return b64decode(written)
    return int(written) if written.lstrip("-").isdigit() else float(written)


# --- removal --------------------------------------------------------------------------------------


_COUNTED_MAX: Final = 1_000
"""Items of one partition that are counted."""
_DELETES_MAX: Final = 25
"""Deletions of one request: DynamoDB's limit."""


class DynamoRemoval(Upkeep):
    """`lakesync.ports.GatewayItems` in the buffer's DynamoDB table."""

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        heads = self.all_heads(gateway)
        partitions = _partitions(gateway, tables, heads)
        numbers = self.in_parallel([partial(self._count, each) for each in partitions])
        counts = {
            "heads": sum(map(item_format.is_used, heads.values())),
            "registry": int(bool(self._get(item_format.GATEWAYS, gateway))),
        }
        for each, number in zip(partitions, numbers, strict=True):
            counts[each.kind] = counts.get(each.kind, 0) + number
        return counts

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        heads = self.all_heads(gateway)
        for lane in (lane for lane, head in heads.items() if item_format.is_used(head)):
            body = requests.empty_head(self._table, gateway, lane)
            self._conditionally("UpdateItem", body)
        partitions = _partitions(gateway, tables, heads)
        for at in range(0, len(partitions), THREADS_MAX):
            some = partitions[at : at + THREADS_MAX]
            if not all(self.in_parallel([partial(self._empty, each, has_time) for each in some])):
                return False
        self._delete([(item_format.GATEWAYS, gateway)])
        return True

    def _count(self, partition: Partition) -> int:
        return len(self._keys(partition, _COUNTED_MAX))

    def _empty(self, partition: Partition, has_time: Callable[[], bool]) -> bool:
        """Delete a partition's items, some at a time; False if time ran out."""
        while has_time():
            # One more than the kept item, so that none is left behind it.
            doomed = self._keys(partition, _DELETES_MAX + 1)
            if not doomed:
                return True
            self._delete([(partition.pk, sk) for sk in doomed[:_DELETES_MAX]])
        return False

    def _keys(self, partition: Partition, limit: int) -> list[str]:
        body = requests.query_after(self._table, partition.pk, "", limit, keys_only=True)
        items = self._read("Query", body)["Items"]
        return [sk for item in items if (sk := text(item, "sk")) != partition.kept]


def _partitions(gateway: str, tables: Iterable[str], heads: Mapping[str, Head]) -> list[Partition]:
    """Return all partitions that items of a gateway can be in, except its tombstone's."""
    shards = sorted({lane_shard(lane) for lane in heads})
    return [
        *(Partition("log", item_format.log_pk(gateway, lane)) for lane in heads),
        *(Partition("rows", pk) for name in tables for pk in item_format.row_pks(gateway, name)),
        *(Partition("marks", item_format.mark_pk(gateway, shard)) for shard in shards),
        Partition("destinations", item_format.destinations_pk(gateway)),
        Partition("destinations", item_format.delivered_pk(gateway)),
        Partition("flush", item_format.flush_pk(gateway)),
        Partition("flush", item_format.flushed_pk(gateway)),
        *(Partition("clients", pk) for pk in item_format.client_pks(gateway)),
        *side_partitions(gateway),
    ]
