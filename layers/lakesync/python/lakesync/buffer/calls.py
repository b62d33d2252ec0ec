"""Calls of a DynamoDB table: reads with retries, and conditional writes that may be refused."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lakesync.buffer import requests
from lakesync.buffer.answers import cancelled, text
from lakesync.buffer.caller import Refusal
from lakesync.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from lakesync.buffer.caller import DynamoCaller

T = TypeVar("T")

BATCH_MAX: Final = 100
"""Items of one ``BatchGetItem``."""
THREADS_MAX: Final = 32
"""Requests that one process makes at once: the logs of all lanes take two rounds."""
_READ_TRIES_MAX: Final = 4
_READ_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.16


class InParallel(Protocol):
    """Makes calls in parallel."""

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the answers in the order of the calls; raises what one of them raised."""
        ...


class Threads:
    """Makes calls in threads, which are started when they are first needed, and kept.

    When the answers are returned no call is still running, even if one of them failed.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the answers in the order of the calls; raises what one of them raised."""
        if self._pool is None:
            # Few processes need it, and importing it takes a millisecond.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(THREADS_MAX, "dynamodb")
        running = [self._pool.submit(call) for call in calls]
        answers: list[T] = []
        errors: list[Exception] = []
        for each in running:
            try:
                answers.append(each.result())
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return answers


class TableCalls:
    """The calls of one table. Thread-safe.

    Args:
        table: the table's name.
        caller: calls DynamoDB.
        sleep_s: waits between two tries of a read.
        in_parallel: makes calls that do not depend on each other.
    """

    def __init__(
        self,
        table: str,
        caller: DynamoCaller,
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        in_parallel: InParallel | None = None,
    ) -> None:
        self._table = table
        self._call = caller
        self._sleep_s = sleep_s
        self._in_parallel = in_parallel or Threads()

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls in parallel; a single call is made directly."""
        return self._in_parallel(calls) if len(calls) > 1 else [call() for call in calls]

    def _get(self, pk: str, sk: str, attribute: str = "") -> dict[str, Any]:
        answer = self._read("GetItem", requests.get(self._table, pk, sk, attribute))
        item: dict[str, Any] = answer.get("Item", {})
        return item

    def _batch(self, wanted: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        rest = list(dict.fromkeys(wanted))
        read: list[dict[str, Any]] = []
        while rest:
            items, left = self._batch_once(rest[:BATCH_MAX])
            read += items
            rest = rest[BATCH_MAX:] + left
        return read

    def _batch_once(
        self, wanted: Iterable[tuple[str, str]]
    ) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Read items, at most a hundred; returns some, and the keys that are left."""
        keys = list(wanted)
        refused = 0
        while True:
            answer = self._read("BatchGetItem", requests.batch_get(self._table, keys))
            unread = answer.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            left = [(text(item, "pk"), text(item, "sk")) for item in unread]
            if len(left) < len(keys):
                return answer["Responses"].get(self._table, []), left
            refused += 1
            self._pause(refused)

    def _transaction(self, wanted: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """Read items as one transaction sees them, a hundred at a time."""
        keys = list(dict.fromkeys(wanted))
        read: list[dict[str, Any]] = []
        for at in range(0, len(keys), BATCH_MAX):
            body = requests.transact_get(self._table, keys[at : at + BATCH_MAX])
            answer = self._read("TransactGetItems", body)
            read += [response["Item"] for response in answer["Responses"] if "Item" in response]
        return read

    def _read(self, operation: str, body: bytes) -> dict[str, Any]:
        """Call an operation that changes nothing, with retries after transient failures."""
        for tries in range(1, _READ_TRIES_MAX):
            try:
                return self._asked(operation, body)
            except Unavailable:
                self._pause(tries)
        return self._asked(operation, body)

    def _asked(self, operation: str, body: bytes) -> dict[str, Any]:
        try:
            return self._call(operation, body)
        except Refusal as refusal:
            raise cancelled(refusal) from refusal

    def _pause(self, tries: int) -> None:
        if tries >= _READ_TRIES_MAX:
            raise Unavailable("DynamoDB is busy; the same request may succeed in a moment")
        self.pause(tries)

    def pause(self, tries: int) -> None:
        """Wait a random time, longer with each try."""
        bound_s = min(_READ_PAUSE_S * 2**tries, _PAUSE_S_MAX)
        self._sleep_s(random.random() * bound_s)  # noqa: S311 - jitter

    def _conditionally(self, operation: str, body: bytes) -> bool:
        try:
            self._call(operation, body)
        except Refusal:
            return False
        return True

    def _updated(
        self, pk_sk: tuple[str, str], change: str, condition: str, values: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Change an item, if the condition holds; returns the changed item."""
        body = {
            "TableName": self._table,
            "Key": requests.key(*pk_sk),
            "UpdateExpression": change,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
        }
        try:
            item: dict[str, Any] = self._call("UpdateItem", requests.encode(body))["Attributes"]
        except Refusal:
            return None
        return item
