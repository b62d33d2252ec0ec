"""DynamoDB as a model: one table in memory that answers requests as DynamoDB does, in given time.

It stands below the real `lakesync.buffer.caller.DynamoCaller`, in place of the network: the real
requests come in as bytes, and answers and refusals go out as bytes. Reads are consistent. Writes
that lost their condition, and cancelled transactions, are billed. A request that it does not know
in full raises.
"""

from __future__ import annotations

import json
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from benchmarks.scale import latency
from benchmarks.scale.actions import Refused, action_of, known_only, size_of
from benchmarks.scale.items import Bill, Items, write_units
from benchmarks.scale.reads import Reads
from benchmarks.scale.transactions import Transactions
from benchmarks.scale.updates import UpdateRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from benchmarks.scale.actions import Action
    from benchmarks.scale.expressions import Item
    from benchmarks.scale.items import Key
    from benchmarks.scale.latency import Spread
    from benchmarks.scale.partitions import Partitions
    from benchmarks.scale.ports import Clock

BATCH_WRITE_MAX: Final = 25
INDEXES: Final = {"unflushed": "o"}
"""The table's indexes, each by the attribute that it has beside ``pk``: they show keys alone."""
_KNOWN: Final = {
    "GetItem": "TableName Key ConsistentRead ProjectionExpression",
    "BatchGetItem": "RequestItems",
    "TransactGetItems": "TransactItems",
    "Query": "TableName KeyConditionExpression ExpressionAttributeValues ExpressionAttributeNames "
    "ConsistentRead Limit ScanIndexForward ExclusiveStartKey ProjectionExpression",
    "Scan": "TableName IndexName Limit ExclusiveStartKey",
    "BatchWriteItem": "RequestItems",
}
"""What each operation may be asked; of writes `action_of` knows it."""
_SPREADS: Final = {
    "BatchGetItem": latency.BATCH,
    "BatchWriteItem": latency.BATCH,
    "Query": latency.QUERY,
    "Scan": latency.QUERY,
    "TransactGetItems": latency.TRANSACT_READ,
}


class Dynamo:
    """One table: `lakesync.buffer.caller.Send`."""

    def __init__(self, clock: Clock, random: Random, partitions: Partitions | None = None) -> None:
        self.items = Items(INDEXES)
        self.bill = Bill()
        self.updates: Counter[Key] = Counter()
        """UpdateItem requests by item, those that lost their condition too."""
        self.partitions = partitions
        self.is_instant = False
        """Takes no time and no units: while a scenario is being set up."""
        self._clock = clock
        self._random = random
        self._transactions = Transactions(self, clock, random)
        reads = Reads(self, self._transactions.is_locked)
        self._others: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "GetItem": reads.get,
            "BatchGetItem": reads.batch_get,
            "TransactGetItems": reads.transact_get,
            "Query": reads.query,
            "Scan": reads.scan,
            "BatchWriteItem": self._batch_write,
        }

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a request."""
        operation = headers["X-Amz-Target"].partition(".")[2]
        request = json.loads(body)
        reports = request.pop("ReturnConsumedCapacity", "NONE") == "TOTAL"
        self.bill.calls[operation] += 1
        before = self.bill.write_units + self.bill.read_units if reports else 0
        try:
            answer = self._answer(operation, request, body)
        except Refused as refused:
            self.bill.refusals[refused.kind] += 1
            return HTTPStatus.BAD_REQUEST, json.dumps(refused.body).encode()
        if reports:
            units = self.bill.write_units + self.bill.read_units - before
            answer["ConsumedCapacity"] = {"CapacityUnits": units}
        return HTTPStatus.OK, json.dumps(answer, separators=(",", ":")).encode()

    def _answer(self, operation: str, request: dict[str, Any], body: bytes) -> dict[str, Any]:
        if operation == "TransactWriteItems":
            return self._transactions.write(request, body)
        if operation in {"PutItem", "UpdateItem", "DeleteItem"}:
            action = action_of(operation.removesuffix("Item"), request)
            self.updates[action.key] += operation == "UpdateItem"
            return self._timed(latency.SINGLE, lambda: self._write(action))
        known_only(request, _KNOWN[operation])
        act = self._others[operation]
        return self._timed(_SPREADS.get(operation, latency.SINGLE), lambda: act(request))

    def _timed(self, spread: Spread, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        takes_ms = 0.0 if self.is_instant else spread.draw_ms(self._random)
        self._clock.sleep_ms(takes_ms / 2)
        before = self.bill.read_units
        try:
            return act()
        finally:
            megabytes = (self.bill.read_units - before) * 4 / 1024
            self._clock.sleep_ms(takes_ms / 2 + megabytes * latency.READ_MB_MS)

    # --- what partitions take, and what is billed

    def pays_write(self, key: Key, units: float) -> bool:
        """Bill a write, unless the partition refuses it; returns whether it does not."""
        if self.is_instant:
            return True
        if self.partitions is not None and not self.partitions.takes_write(*key, units):
            return False
        self.bill.write_units += units
        return True

    def pays_read(self, pk: str, between: tuple[str, str], units: float) -> bool:
        """Bill a read, unless the partition refuses it."""
        if self.is_instant:
            return True
        if self.partitions is not None and not self.partitions.takes_read(pk, *between, units):
            return False
        self.bill.read_units += units
        return True

    # --- single writes

    def _write(self, action: Action) -> dict[str, Any]:
        before = self.items.get(action.key)
        size = self.items.size_bytes(action.key)
        if self._transactions.is_locked(action.key):
            self.pays_write(action.key, write_units(size))
            raise Refused("TransactionConflictException", "Transaction is ongoing for the item")
        is_met = action.condition(before or {}, action.bound)
        try:
            after = action.make(before) if is_met else None
        except UpdateRefused as exc:
            raise Refused("ValidationException", str(exc)) from exc
        if not self.pays_write(action.key, write_units(size, size_of(after))):
            raise Refused("ThrottlingException", "Throughput exceeds the current capacity")
        if not is_met:
            more = {"Item": before} if before and action.gives_old_on_failure else {}
            raise Refused(
                "ConditionalCheckFailedException", "The conditional request failed", **more
            )
        self.carry_out(action, after)
        returned = {"ALL_OLD": before, "ALL_NEW": after}.get(action.returns)
        return {"Attributes": returned} if returned else {}

    def carry_out(self, action: Action, after: Item | None) -> None:
        """Store what an action makes, in indexes too."""
        before = self.items.index_writes
        if after is not None:
            self.items.put(after)
        elif action.deletes:
            self.items.delete(action.key)
        if not self.is_instant:
            self.bill.write_units += self.items.index_writes - before

    def _batch_write(self, request: dict[str, Any]) -> dict[str, Any]:
        unprocessed: dict[str, list[Any]] = {}
        for table, wanted in request["RequestItems"].items():
            if len(wanted) > BATCH_WRITE_MAX:
                raise Refused("ValidationException", "Too many items requested")
            for one in wanted:
                ((kind, inner),) = one.items()
                action = action_of(kind.removesuffix("Request"), {"TableName": table, **inner})
                try:
                    self._write(action)
                except Refused:
                    unprocessed.setdefault(table, []).append(one)
        return {"UnprocessedItems": unprocessed}
