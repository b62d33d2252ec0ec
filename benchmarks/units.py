"""DynamoDB's request units, computed from a request by the rule of its documentation.

A put costs a unit for each KB of its item, begun ones counted whole, and twice that inside a
transaction; an update of an item below 1 KB costs what a put of it does. A consistent read costs a
unit for each 4 KB, and one for an item that is not there. Held against ``ConsumedCapacity`` by
``tests/contracts/test_buffer_cost.py``.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_KB = 1024
_READ_BYTES = 4096


def item_bytes(item: Mapping[str, Mapping[str, str]]) -> int:
    """Return an item's size as DynamoDB counts it: names and values."""
    size = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        size += len(name.encode())
        if kind == "B":
            size += len(b64decode(value))
        elif kind == "N":
            size += math.ceil(len(value.strip("-0.")) / 2) + 1
        else:
            size += len(value.encode())
    return size


def transaction_units(body: bytes) -> float:
    """Return the write units of a ``TransactWriteItems``, whose updates are of small items."""
    items: list[dict[str, Any]] = json.loads(body)["TransactItems"]
    kilobytes = sum(
        math.ceil(item_bytes(item["Put"]["Item"]) / _KB) if "Put" in item else 1 for item in items
    )
    return 2.0 * kilobytes


def read_units(sizes: Iterable[int]) -> float:
    """Return the read units of consistent reads of items, by their sizes; 0 for an absent one."""
    return float(sum(max(math.ceil(size / _READ_BYTES), 1) for size in sizes))


def batch_read_units(body: bytes, answer: bytes) -> float:
    """Return the read units of a consistent ``BatchGetItem``, by its request and its answer."""
    items_read = [item for items in json.loads(answer)["Responses"].values() for item in items]
    asked = sum(len(table["Keys"]) for table in json.loads(body)["RequestItems"].values())
    return read_units([*map(item_bytes, items_read), *[0] * (asked - len(items_read))])
