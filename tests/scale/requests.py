"""Requests to DynamoDB as chance draws them: few keys, so that conditions are met and lost."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from tests.support.stores import TABLE

if TYPE_CHECKING:
    from random import Random

Request = tuple[str, dict[str, Any]]
CONDITIONS: Final = (
    "attribute_not_exists(pk)",
    "attribute_exists(pk)",
    "c = :n",
    "c = :n AND v = :m",
    "attribute_not_exists(pk) OR c <= :n",
    "c > :n AND (attribute_not_exists(v) OR v <= :m)",
    "attribute_exists(pk) AND (attribute_not_exists(t) OR t < :n)",
    "NOT c >= :n",
    "c BETWEEN :n AND :m",
    "begins_with(d, :s)",
    "#c = :n",
)
UPDATES: Final = (
    "SET c = :n",
    "SET c = :n, v = if_not_exists(v, :m)",
    "SET t = :n REMOVE v",
    "SET c = c + :n",
    "SET c = if_not_exists(c, :m) - :n",
    "SET d = :s",
    "REMOVE c, t",
    "ADD c :n",
)


class Drawn:
    """Draws requests, whose keys begin with a prefix."""

    def __init__(self, random: Random, prefix: str) -> None:
        self._random = random
        self._prefix = prefix

    def request(self) -> Request:
        kinds = {
            "PutItem": 2, "UpdateItem": 4, "DeleteItem": 1, "GetItem": 1, "BatchGetItem": 1,
            "Query": 3, "TransactWriteItems": 5, "TransactGetItems": 1, "BatchWriteItem": 1,
        }  # fmt: skip
        operation = self._random.choices(list(kinds), list(kinds.values()))[0]
        return operation, getattr(self, operation)()

    def PutItem(self) -> dict[str, Any]:  # noqa: N802 - as DynamoDB calls it
        item = {**self._key(), "c": self._number()}
        if self._random.random() < 0.5:
            item["v"] = self._number()
        size = self._random.choice([1, 300, 1_500, 9_000])
        if self._random.random() < 0.5:
            item["b"] = {"B": b64encode(b"x" * size).decode()}
        if self._random.random() < 0.5:
            item["d"] = {"S": self._random.choice("ab") * size}
        return self._conditional({"TableName": TABLE, "Item": item})

    def UpdateItem(self) -> dict[str, Any]:  # noqa: N802
        change = self._random.choice(UPDATES)
        request = {"TableName": TABLE, "Key": self._key(), "UpdateExpression": change}
        return self._conditional(request)

    def DeleteItem(self) -> dict[str, Any]:  # noqa: N802
        return self._conditional({"TableName": TABLE, "Key": self._key()})

    def GetItem(self) -> dict[str, Any]:  # noqa: N802
        request = {"TableName": TABLE, "Key": self._key(), "ConsistentRead": True}
        if self._random.random() < 0.3:
            request["ProjectionExpression"] = "pk, sk, c"
        return request

    def BatchGetItem(self) -> dict[str, Any]:  # noqa: N802
        wanted = {"Keys": self._keys(), "ConsistentRead": True}
        return {"RequestItems": {TABLE: wanted}}

    def TransactGetItems(self) -> dict[str, Any]:  # noqa: N802
        return {
            "TransactItems": [{"Get": {"TableName": TABLE, "Key": key}} for key in self._keys()]
        }

    def BatchWriteItem(self) -> dict[str, Any]:  # noqa: N802
        """Draw deletions without conditions."""
        return {"RequestItems": {TABLE: [{"DeleteRequest": {"Key": key}} for key in self._keys()]}}

    def TransactWriteItems(self) -> dict[str, Any]:  # noqa: N802
        items = []
        for key in self._keys():
            kind = self._random.choice(["Put", "Update", "Update", "Delete", "ConditionCheck"])
            inner = self._conditional({"TableName": TABLE, "Key": key}, always=True)
            if kind == "Put":
                inner["Item"] = {**inner.pop("Key"), "c": self._number()}
            if kind == "Update":
                inner["UpdateExpression"] = self._random.choice(UPDATES)
            items.append({kind: _bound(inner, self._random)})
        return {"TransactItems": items, "ClientRequestToken": f"{self._random.getrandbits(64)}"}

    def Query(self) -> dict[str, Any]:  # noqa: N802
        condition = self._random.choice(
            [
                "pk = :pk",
                "pk = :pk AND sk = :low",
                "pk = :pk AND sk BETWEEN :low AND :high",
                "pk = :pk AND sk > :low",
                "pk = :pk AND sk >= :low",
                "pk = :pk AND sk < :low",
                "pk = :pk AND sk <= :low",
                "pk = :pk AND begins_with(sk, :low)",
            ]
        )
        low, high = sorted(self._random.choices(["", "r", "r1", "r2", "r3", "r9"], k=2))
        values = {":pk": {"S": self._pk()}, ":low": {"S": low or "a"}, ":high": {"S": high or "a"}}
        request: dict[str, Any] = {
            "TableName": TABLE,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": {
                name: value for name, value in values.items() if name in condition
            },
            "ConsistentRead": True,
        }
        if self._random.random() < 0.6 and "sk =" not in condition:
            request["Limit"] = self._random.randint(1, 5)
        if self._random.random() < 0.3:
            request["ScanIndexForward"] = False
        if self._random.random() < 0.3:
            request["ProjectionExpression"] = "pk, sk"
        return request

    # --- parts

    def _pk(self) -> str:
        return f"{self._prefix}{self._random.choice('ab')}"

    def _key(self) -> dict[str, Any]:
        return {"pk": {"S": self._pk()}, "sk": {"S": f"r{self._random.randint(0, 4)}"}}

    def _keys(self) -> list[dict[str, Any]]:
        keys = {json.dumps(self._key()) for _ in range(self._random.randint(1, 4))}
        return [json.loads(key) for key in sorted(keys)]

    def _number(self) -> dict[str, str]:
        return {"N": str(self._random.choice([0, 1, 2, 3, 7, 10, 1_000, 1_700_000_000_000 << 16]))}

    def _conditional(self, request: dict[str, Any], *, always: bool = False) -> dict[str, Any]:
        if always or self._random.random() < 0.7:
            request["ConditionExpression"] = self._random.choice(CONDITIONS)
            if self._random.random() < 0.5:
                request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return request if always else _bound(request, self._random)


def _bound(request: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return a request with the names and values that its expressions use, and no others."""
    texts = f"{request.get('ConditionExpression', '')} {request.get('UpdateExpression', '')}"
    small = sorted(random.choices([0, 1, 2, 3, 7], k=2))
    values = {":n": {"N": str(small[0])}, ":m": {"N": str(small[1])}, ":s": {"S": "a"}}
    used = {name: value for name, value in values.items() if name in texts}
    if used:
        request["ExpressionAttributeValues"] = used
    if "#c" in texts:
        request["ExpressionAttributeNames"] = {"#c": "c"}
    return request
