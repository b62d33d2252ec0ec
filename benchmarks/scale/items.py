"""The items of one table, by partition key and sort key, with their sizes; and what was billed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from benchmarks.units import item_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from benchmarks.scale.expressions import Item
    from benchmarks.scale.updates import Range

Key: TypeAlias = tuple[str, str]
_KB: Final = 1024
_READ_BYTES: Final = 4096


def key_of(item: Item) -> Key:
    """Return an item's key."""
    return item["pk"]["S"], item["sk"]["S"]


def write_units(*sizes_bytes: int) -> int:
    """Return the units of a write, by the item's sizes before and after it."""
    return max(1, math.ceil(max(sizes_bytes) / _KB))


def read_units(size_bytes: int) -> int:
    """Return the units of a consistent read."""
    return max(1, math.ceil(size_bytes / _READ_BYTES))


@dataclass(slots=True)
class _Collection:
    """The items of one partition key."""

    keys: list[str] = field(default_factory=list)
    items: dict[str, tuple[Item, int]] = field(default_factory=dict)


class Items:
    """All items.

    Args:
        indexes: the attribute that each index has beside ``pk``; an item without it is not in it.
    """

    def __init__(self, indexes: Mapping[str, str]) -> None:
        self._collections: dict[str, _Collection] = {}
        self._attributes = indexes
        self.indexes: dict[str, dict[Key, Item]] = {name: {} for name in indexes}
        """What each index shows: keys alone."""
        self.index_writes = 0
        """Writes of indexes: one when an item comes or goes, two when its key there changes."""

    def get(self, key: Key) -> Item | None:
        """Return an item."""
        collection = self._collections.get(key[0])
        stored = collection.items.get(key[1]) if collection else None
        return stored[0] if stored else None

    def size_bytes(self, key: Key) -> int:
        """Return an item's size; 0 if it is not there."""
        collection = self._collections.get(key[0])
        stored = collection.items.get(key[1]) if collection else None
        return stored[1] if stored else 0

    def put(self, item: Item) -> None:
        """Store an item in place of what was there."""
        pk, sk = key_of(item)
        collection = self._collections.get(pk)
        if collection is None:
            collection = self._collections[pk] = _Collection()
        if sk not in collection.items:
            insort(collection.keys, sk)
        collection.items[sk] = (item, item_bytes(item))
        self._index((pk, sk), item)

    def delete(self, key: Key) -> None:
        """Remove an item, if it is there."""
        collection = self._collections.get(key[0])
        if collection and collection.items.pop(key[1], None):
            del collection.keys[bisect_left(collection.keys, key[1])]
            self._index(key, {})

    def _index(self, key: Key, item: Item) -> None:
        for name, attribute in self._attributes.items():
            shown = self.indexes[name]
            before = shown.get(key)
            if attribute in item:
                after = {part: item[part] for part in ("pk", "sk", attribute)}
                self.index_writes += (before != after) + (before is not None and before != after)
                shown[key] = after
            elif before is not None:
                self.index_writes += 1
                del shown[key]

    def copy(self, gateway: str, others: Iterable[str]) -> None:
        """Give other gateways the same items: their keys begin with its name, or are it."""
        of_gateway = [
            (pk.removeprefix(gateway), item)
            for pk, collection in self._collections.items()
            for item, _ in collection.items.values()
            if pk.startswith(f"{gateway}|")
        ]
        listings = [c.items[gateway][0] for c in self._collections.values() if gateway in c.items]
        for other in others:
            for rest, item in of_gateway:
                self.put({**item, "pk": {"S": other + rest}})
            for item in listings:
                self.put({**item, "sk": {"S": other}})

    def within(self, wanted: Range, after: str | None, *, forward: bool) -> Iterator[Item]:
        """Yield the items of a range behind a sort key, in order or against it."""
        collection = self._collections.get(wanted.pk)
        if collection is None:
            return
        keys = collection.keys
        first = (bisect_right if wanted.behind_low else bisect_left)(keys, wanted.low)
        end = (bisect_left if wanted.before_high else bisect_right)(keys, wanted.high)
        if after is not None and forward:
            first = max(first, bisect_right(keys, after))
        elif after is not None:
            end = min(end, bisect_left(keys, after))
        for key in keys[first:end] if forward else reversed(keys[first:end]):
            yield collection.items[key][0]


@dataclass
class Bill:
    """What DynamoDB charges for, refused or not."""

    write_units: float = 0
    read_units: float = 0
    calls: Counter[str] = field(default_factory=Counter)
    """By operation."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By what they are called; reasons of cancelled transactions too."""

    def since(self, before: Bill) -> Bill:
        """Return what came on top of an earlier bill."""
        return Bill(
            self.write_units - before.write_units,
            self.read_units - before.read_units,
            self.calls - before.calls,
            self.refusals - before.refusals,
        )

    def copy(self) -> Bill:
        """Return the bill as it is now."""
        return Bill(self.write_units, self.read_units, Counter(self.calls), Counter(self.refusals))
