"""DynamoDB's reads."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from benchmarks.scale.actions import Refused, known_only
from benchmarks.scale.expressions import bindings
from benchmarks.scale.items import key_of, read_units
from benchmarks.scale.updates import LAST, key_condition
from benchmarks.units import item_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale.expressions import Item
    from benchmarks.scale.items import Key
    from benchmarks.scale.transactions import Table

PAGE_BYTES_MAX: Final = 1024 * 1024
"""What one Query reads, or one BatchGetItem of one partition."""
BATCH_GET_MAX: Final = 100


class Reads:
    """Answers reads of one table."""

    def __init__(self, table: Table, is_locked: Callable[[Key], bool]) -> None:
        self._table = table
        self._is_locked = is_locked

    def get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a ``GetItem``."""
        key = key_of(request["Key"])
        units = read_units(self._table.items.size_bytes(key)) * _share(request)
        if not self._table.pays_read(key[0], (key[1], key[1]), units):
            raise Refused("ThrottlingException", "Throughput exceeds the current capacity")
        item = self._table.items.get(key)
        return {"Item": _projected(item, request)} if item else {}

    def batch_get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a ``BatchGetItem``; what is too much or throttled is left for another."""
        responses: dict[str, list[Item]] = {}
        unprocessed: dict[str, Any] = {}
        for table, wanted in request["RequestItems"].items():
            known_only(wanted, "Keys ConsistentRead")
            if len(wanted["Keys"]) > BATCH_GET_MAX:
                raise Refused("ValidationException", "Too many items requested")
            items = responses[table] = []
            left = []
            of_partition: dict[str, int] = {}
            for typed in wanted["Keys"]:
                pk, sk = key = key_of(typed)
                size = self._table.items.size_bytes(key)
                of_partition[pk] = of_partition.get(pk, 0) + size
                fits = of_partition[pk] - size <= PAGE_BYTES_MAX
                units = read_units(size) * _share(wanted)
                if not (fits and self._table.pays_read(pk, (sk, sk), units)):
                    left.append(typed)
                elif item := self._table.items.get(key):
                    items.append(item)
            if len(left) == len(wanted["Keys"]):
                raise Refused("ThrottlingException", "Throughput exceeds the current capacity")
            if left:
                unprocessed[table] = {**wanted, "Keys": left}
            items.reverse()  # no order is promised
        return {"Responses": responses, "UnprocessedKeys": unprocessed}

    def transact_get(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a ``TransactGetItems``; an item in a transaction refuses it."""
        wanted = [key_of(one["Get"]["Key"]) for one in request["TransactItems"]]
        reasons = []
        for key in wanted:
            units = 2 * read_units(self._table.items.size_bytes(key))
            if self._is_locked(key):
                reasons.append("TransactionConflict")
            elif not self._table.pays_read(key[0], (key[1], key[1]), units):
                reasons.append("ThrottlingError")
            else:
                reasons.append("None")
        if set(reasons) != {"None"}:
            raise Refused.cancelled([{"Code": code} for code in reasons])
        items = [self._table.items.get(key) for key in wanted]
        return {"Responses": [{"Item": item} if item else {} for item in items]}

    def query(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a ``Query``, a MB at the most."""
        wanted = key_condition(request["KeyConditionExpression"])(bindings(request))
        start, limit = request.get("ExclusiveStartKey"), request.get("Limit", 0)
        forward = request.get("ScanIndexForward", True)
        after = key_of(start)[1] if start else None
        items: list[Item] = []
        size, last = 0, None
        for item in self._table.items.within(wanted, after, forward=forward):
            items.append(item)
            size += self._table.items.size_bytes(key_of(item))
            if size >= PAGE_BYTES_MAX or len(items) == limit:
                # At the very end of the range DynamoDB knows that there is nothing behind.
                if not wanted.ends_at(item["sk"]["S"], forward=forward):
                    last = {"pk": item["pk"], "sk": item["sk"]}
                break
        units = read_units(size) * _share(request)
        if not self._table.pays_read(wanted.pk, (wanted.low, wanted.high), units):
            raise Refused("ThrottlingException", "Throughput exceeds the current capacity")
        items = [_projected(item, request) for item in items]
        answer: dict[str, Any] = {"Items": items, "Count": len(items), "ScannedCount": len(items)}
        return {**answer, "LastEvaluatedKey": last} if last else answer

    def scan(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a ``Scan`` of an index, which is never consistent."""
        shown = self._table.items.indexes[request["IndexName"]]
        start, limit = request.get("ExclusiveStartKey"), request.get("Limit", len(shown) + 1)
        places = sorted(shown)
        first = bisect_right(places, key_of(start)) if start else 0
        some = [shown[key] for key in places[first : first + limit]]
        units = read_units(sum(map(item_bytes, some))) * _share(request)
        if not self._table.pays_read(request["IndexName"], ("", LAST), units):
            raise Refused("ThrottlingException", "Throughput exceeds the current capacity")
        answer: dict[str, Any] = {"Items": some, "Count": len(some), "ScannedCount": len(some)}
        return {**answer, "LastEvaluatedKey": some[-1]} if len(some) == limit else answer


def _projected(item: Item, request: dict[str, Any]) -> Item:
    """Return what was asked for of an item; it costs as much as all of it."""
    names = [name.strip() for name in request.get("ProjectionExpression", "").split(",")]
    return item if names == [""] else {name: item[name] for name in names if name in item}


def _share(request: dict[str, Any]) -> float:
    return 1.0 if request.get("ConsistentRead") else 0.5
