"""An item store in a DynamoDB table: items, conditions and changes as requests and answers."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from lakesync.buffer import requests
from lakesync.buffer.caller import Refusal
from lakesync.buffer.items import ALWAYS, EXISTS, MISSING, NEVER_WRITTEN, Item
from lakesync.buffer.table_calls import TableCalls, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.buffer.items import Change, Check, Condition, NewItem, Value


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
