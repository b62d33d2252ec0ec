"""An item store: attributes under two keys, written on conditions. The side stores are over it.

`DynamoItemStore` keeps items in a DynamoDB table, `MemoryItemStore` in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Value = str | int | float | bytes
Item = dict[str, Any]
"""The attributes of an item, with its keys ``pk`` and ``sk``; empty if there is no such item."""

EXISTS: Final = "exists"
MISSING: Final = "missing"


class Check(NamedTuple):
    """A check of one attribute. A comparison with a missing attribute fails."""

    attribute: str
    relation: str
    """``=``, ``<``, ``<=``, ``>``, ``>=``, `EXISTS` or `MISSING`."""
    value: Value = ""


Condition = tuple[tuple[Check, ...], ...]
"""Of each group one check must hold."""

ALWAYS: Final[Condition] = ()
NEVER_WRITTEN: Final[Condition] = ((Check("pk", MISSING),),)
WRITTEN: Final[Condition] = ((Check("pk", EXISTS),),)


def where(attribute: str, relation: str, value: Value) -> Condition:
    """Return a condition of one check."""
    return ((Check(attribute, relation, value),),)


class Change(NamedTuple):
    """What an update does to the attributes of an item."""

    put: Mapping[str, Value] = {}
    add: Mapping[str, int] = {}
    """Numbers; a missing attribute counts as 0."""
    remove: Sequence[str] = ()


class NewItem(NamedTuple):
    """An item to be written."""

    pk: str
    sk: str
    attributes: Mapping[str, Value]


class ItemStore(Protocol):
    """Items by partition key and sort key. Reads are consistent unless they say otherwise.

    A write whose condition fails changes nothing, and returns False or None. An update of a
    missing item makes it. Sort keys are in the order of their UTF-8 bytes.
    """

    def get(self, pk: str, sk: str, *, consistent: bool = True) -> Item:
        """Return an item; one that is not ``consistent`` may be a moment old, at half the cost."""
        ...

    def query(self, pk: str, after: str, limit: int) -> tuple[list[Item], str]:
        """Return items behind a sort key, and the sort key behind which more follow, or ""."""
        ...

    def query_all(self, pk: str) -> list[Item]:
        """Return all items of a partition."""
        ...

    def query_back(
        self, pk: str, between: tuple[str, str], below: str, equal: Mapping[str, str], limit: int
    ) -> tuple[list[Item], str]:
        """Return items with certain attributes, the highest first, which may be a moment old.

        Args:
            pk: the partition.
            between: the lowest and the highest sort key.
            below: only items below this sort key; empty for all.
            equal: attributes that the items must have. If there are any, ``limit`` does not apply:
                what one request reads is filtered.
            limit: the most items.

        Returns:
            The items; and the sort key below which more may follow, or "".
        """
        ...

    def scan(self, place: str, having: str, limit: int) -> tuple[list[Item], str]:
        """Return items with an attribute, of all partitions, from a place on; and the next one."""
        ...

    def put(self, item: NewItem, condition: Condition = ALWAYS) -> bool:
        """Write an item in place of any with its keys."""
        ...

    def add_all(self, items: Sequence[NewItem]) -> bool:
        """Write items at once, if none of them was ever written."""
        ...

    def update(self, pk: str, sk: str, change: Change, condition: Condition = ALWAYS) -> bool:
        """Change an item."""
        ...

    def updated(self, pk: str, sk: str, change: Change, condition: Condition) -> Item | None:
        """Change an item, and return it."""
        ...

    def delete(self, pk: str, sk: str, condition: Condition = ALWAYS) -> bool:
        """Remove an item, if there is one."""
        ...

    def take(self, pk: str, sk: str, condition: Condition) -> Item | None:
        """Remove an item, and return what it was."""
        ...
