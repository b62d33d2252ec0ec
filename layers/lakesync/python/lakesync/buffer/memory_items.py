"""An item store in this process: for tests, and for apps without a server."""

from __future__ import annotations

import json
import operator
import threading
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.item_format import side_partitions
from lakesync.buffer.items import ALWAYS, EXISTS, MISSING, NEVER_WRITTEN, Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.buffer.item_format import Partition
    from lakesync.buffer.items import Change, Check, Condition, ItemStore, NewItem
    from lakesync.buffer.memory_buffer import MemoryBuffer

_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class MemoryItemStore:
    """`lakesync.buffer.items.ItemStore` in this process. Thread-safe; nothing expires."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._partitions: dict[str, dict[str, Item]] = defaultdict(dict)

    def get(self, pk: str, sk: str, *, consistent: bool = True) -> Item:
        del consistent  # here every read is
        with self._lock:
            return dict(self._stored(pk, sk))

    def query(self, pk: str, after: str, limit: int) -> tuple[list[Item], str]:
        behind = [item for item in self.query_all(pk) if _order(item["sk"]) > _order(after)]
        page = behind[:limit]
        return page, page[-1]["sk"] if len(behind) > limit else ""

    def query_all(self, pk: str) -> list[Item]:
        with self._lock:
            stored = self._partitions.get(pk, {})
            return [dict(stored[sk]) for sk in sorted(stored, key=_order)]

    def query_back(
        self, pk: str, between: tuple[str, str], below: str, equal: Mapping[str, str], limit: int
    ) -> tuple[list[Item], str]:
        low, high = map(_order, between)
        matching = [
            item
            for item in reversed(self.query_all(pk))
            if low <= _order(item["sk"]) <= high
            and (not below or _order(item["sk"]) < _order(below))
            and all(item.get(name) == value for name, value in equal.items())
        ]
        page = matching if equal else matching[:limit]
        return page, page[-1]["sk"] if len(matching) > len(page) else ""

    def scan(self, place: str, having: str, limit: int) -> tuple[list[Item], str]:
        with self._lock:
            keys = sorted((pk, sk) for pk, of in self._partitions.items() for sk in of)
            after = tuple(json.loads(place)) if place else ("", "")
            behind = [key for key in keys if key > after]
            some = [dict(self._stored(*key)) for key in behind[:limit]]
        more = json.dumps(behind[limit - 1]) if len(behind) > limit else ""
        return [item for item in some if having in item], more

    def put(self, item: NewItem, condition: Condition = ALWAYS) -> bool:
        with self._lock:
            if not self._holds(item.pk, item.sk, condition):
                return False
            self._partitions[item.pk][item.sk] = {"pk": item.pk, "sk": item.sk, **item.attributes}
            return True

    def add_all(self, items: Sequence[NewItem]) -> bool:
        with self._lock:
            if not all(self._holds(item.pk, item.sk, NEVER_WRITTEN) for item in items):
                return False
            for item in items:
                self.put(item)
            return True

    def update(self, pk: str, sk: str, change: Change, condition: Condition = ALWAYS) -> bool:
        return self.updated(pk, sk, change, condition) is not None

    def updated(self, pk: str, sk: str, change: Change, condition: Condition) -> Item | None:
        with self._lock:
            if not self._holds(pk, sk, condition):
                return None
            item = self._partitions[pk].setdefault(sk, {"pk": pk, "sk": sk})
            item |= change.put
            item |= {name: item.get(name, 0) + value for name, value in change.add.items()}
            for name in change.remove:
                item.pop(name, None)
            return dict(item)

    def delete(self, pk: str, sk: str, condition: Condition = ALWAYS) -> bool:
        return self.take(pk, sk, condition) is not None

    def take(self, pk: str, sk: str, condition: Condition) -> Item | None:
        with self._lock:
            if not self._holds(pk, sk, condition):
                return None
            return self._partitions[pk].pop(sk, {})

    def _stored(self, pk: str, sk: str) -> Item:
        return self._partitions.get(pk, {}).get(sk, {})

    def _holds(self, pk: str, sk: str, condition: Condition) -> bool:
        item = self._stored(pk, sk)
        return all(any(_passes(item, check) for check in group) for group in condition)


def _passes(item: Item, check: Check) -> bool:
    if check.attribute not in item:
        return check.relation == MISSING
    if check.relation in {EXISTS, MISSING}:
        return check.relation == EXISTS
    return _RELATIONS[check.relation](item[check.attribute], check.value)


def _order(sk: str) -> bytes:
    return sk.encode()


class MemoryRemoval:
    """`lakesync.ports.GatewayItems` of a buffer and an item store in this process."""

    def __init__(self, buffer: MemoryBuffer, *stores: ItemStore) -> None:
        self._buffer = buffer
        self._stores = stores

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        del tables  # memory contains all that exists
        counts = self._buffer.count_items(gateway)
        for each in side_partitions(gateway):
            number = sum(len(_keys(store, each)) for store in self._stores)
            counts[each.kind] = counts.get(each.kind, 0) + number
        return counts

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        del tables
        kinds = self._buffer.count_items(gateway).items()
        steps = [partial(self._buffer.remove_items, gateway, kind) for kind, left in kinds if left]
        steps += [
            partial(self._empty, each)
            for each in side_partitions(gateway)
            if any(_keys(store, each) for store in self._stores)
        ]
        for step in steps:
            if not has_time():
                return False
            step()
        return True

    def _empty(self, partition: Partition) -> None:
        for store in self._stores:
            for sk in _keys(store, partition):
                store.delete(partition.pk, sk)


def _keys(store: ItemStore, partition: Partition) -> list[str]:
    return [sk for item in store.query_all(partition.pk) if (sk := item["sk"]) != partition.kept]
